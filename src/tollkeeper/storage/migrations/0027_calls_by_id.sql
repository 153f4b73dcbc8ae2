-- Calls are found by their id alone, and ids are written in order: in the tree of the ids itself a call is one page to
-- change where it was two.
CREATE TABLE calls_by_id (
    id TEXT PRIMARY KEY NOT NULL,
    purchase_id TEXT NOT NULL REFERENCES purchases (id),
    state TEXT NOT NULL,
    status BIGINT,
    created_ms BIGINT NOT NULL,
    ended_ms BIGINT
) WITHOUT ROWID;
INSERT INTO calls_by_id (id, purchase_id, state, status, created_ms, ended_ms)
SELECT id, purchase_id, state, status, created_ms, ended_ms FROM calls ORDER BY id;
DROP VIEW credit_entries;
DROP TABLE calls;
ALTER TABLE calls_by_id RENAME TO calls;
CREATE INDEX calls_dispatched ON calls (id) WHERE state = 'DISPATCHED';
CREATE VIEW credit_entries AS
SELECT cause, reason, purchase_id, delta, created_ms FROM credits_given
UNION ALL SELECT id, 'spend', purchase_id, -1, created_ms FROM calls;
