-- When the calls of a dead process's ledger were looked for first: its note is forgotten some seconds later, and not
-- before, for what it had sent may be committed after that. NULL: its process lives, or noted something since.
ALTER TABLE open_calls RENAME TO former_open_calls;
CREATE TABLE open_calls (
    ledger TEXT PRIMARY KEY NOT NULL,
    since BIGINT NOT NULL,
    calls TEXT NOT NULL,
    marked_ms BIGINT
);
INSERT INTO open_calls (ledger, since, calls, marked_ms) SELECT ledger, since, calls, NULL FROM former_open_calls;
DROP TABLE former_open_calls;
