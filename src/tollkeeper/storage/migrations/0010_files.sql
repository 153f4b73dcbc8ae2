-- Contents of file PayGates (contract 4.8). A row names an object in the store of files; an object without a row is
-- not sold. `replaced_ms`: the gate sells it no more, and it may go when every link to it is over.
CREATE TABLE files (
    id TEXT PRIMARY KEY,
    gate_id BIGINT NOT NULL REFERENCES paygates (id),
    name TEXT NOT NULL,
    content_type TEXT NOT NULL,
    size_bytes BIGINT NOT NULL CHECK (size_bytes >= 0),
    sha256 TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    replaced_ms BIGINT
);
CREATE UNIQUE INDEX files_sold ON files (gate_id) WHERE replaced_ms IS NULL;
CREATE INDEX files_replaced ON files (replaced_ms) WHERE replaced_ms IS NOT NULL;

-- What a file PayGate sells; it has no target.
ALTER TABLE paygates ADD COLUMN file_id TEXT;
