-- Under which key the hub is asked for a direct transfer, where that is not the one that its request makes (contract 8).
-- `name`: a digest of the request. With a fee also what a caller's own key was sent with first: `name` is a digest of
-- payer and key, `key` names the request.
CREATE TABLE transfer_keys (
    name TEXT PRIMARY KEY,
    key TEXT NOT NULL,
    changed_ms BIGINT NOT NULL
);
CREATE INDEX transfer_keys_by_age ON transfer_keys (changed_ms);

-- How a fee's call ends is said by the hub, whoever asks again; no start of a process ends it.
UPDATE calls SET state = 'DISPATCHED', ended_ms = NULL WHERE state = 'INTERRUPTED' AND substr(id, 1, 4) = 'fee-';
