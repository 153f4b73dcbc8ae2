-- Public numeric ids, one row per numbered table.
CREATE TABLE sequences (
    name TEXT PRIMARY KEY,
    value BIGINT NOT NULL CHECK (value > 0)
);
