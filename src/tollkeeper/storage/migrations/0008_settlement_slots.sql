-- Several settlements may share one transaction, and several transactions one nonce: a settlement's attempt is tied to
-- a slot (network, signer, signer_nonce), and every transaction that was ever signed for a slot counts for all in it.
CREATE TABLE slot_transactions (
    hash TEXT PRIMARY KEY,
    network TEXT NOT NULL,
    signer TEXT NOT NULL,
    signer_nonce BIGINT NOT NULL,
    raw BYTEA NOT NULL,
    created_ms BIGINT NOT NULL
);
CREATE TABLE settlement_slots (
    settlement_id TEXT NOT NULL REFERENCES settlements (id),
    attempt BIGINT NOT NULL,
    network TEXT NOT NULL,
    signer TEXT NOT NULL,
    signer_nonce BIGINT NOT NULL,
    PRIMARY KEY (settlement_id, attempt, network, signer, signer_nonce)
);
CREATE INDEX settlement_slots_by_nonce ON settlement_slots (network, signer, signer_nonce);

INSERT INTO settlement_slots (settlement_id, attempt, network, signer, signer_nonce)
SELECT DISTINCT settlement_id, attempt, network, signer, signer_nonce FROM raw_transactions;
INSERT INTO slot_transactions (hash, network, signer, signer_nonce, raw, created_ms)
SELECT hash, network, signer, signer_nonce, raw, created_ms FROM raw_transactions;
DROP TABLE raw_transactions;
ALTER TABLE slot_transactions RENAME TO raw_transactions;
CREATE INDEX raw_transactions_by_nonce ON raw_transactions (network, signer, signer_nonce);

-- Hub processes that are alive: each says so again and again. What a row's or a lease's holder may do ends with it.
CREATE TABLE hub_processes (
    id TEXT PRIMARY KEY,
    expires_ms BIGINT NOT NULL
);
-- Work that one process does at a time. `token` grows whenever it changes hands: it fences off the former holder.
CREATE TABLE leases (
    name TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    token BIGINT NOT NULL
);

-- Gas limits of what was signed, by Unix minute. What an earlier version signed within the hour is not counted.
CREATE TABLE gas_spent (
    network TEXT NOT NULL,
    minute BIGINT NOT NULL,
    is_trusted BIGINT NOT NULL,
    gas BIGINT NOT NULL,
    PRIMARY KEY (network, minute, is_trusted)
);

-- `holder` carries the row forward and `fence` grows whenever another process takes it over. `failures` counts faults
-- of ours with this row, which is left alone until `retry_ms`. `block_hash` names the block that showed its outcome.
ALTER TABLE settlements ADD COLUMN holder TEXT NOT NULL DEFAULT '';
ALTER TABLE settlements ADD COLUMN fence BIGINT NOT NULL DEFAULT 0;
ALTER TABLE settlements ADD COLUMN failures BIGINT NOT NULL DEFAULT 0;
ALTER TABLE settlements ADD COLUMN retry_ms BIGINT NOT NULL DEFAULT 0;
ALTER TABLE settlements ADD COLUMN block_hash TEXT;
DROP INDEX settlements_unfinished;
CREATE INDEX settlements_unfinished ON settlements (updated_ms, id) WHERE state NOT IN ('CONFIRMED', 'FAILED');
CREATE INDEX settlements_by_block ON settlements (network, block_number) WHERE block_hash IS NOT NULL;
