-- Signers' nonces and the transactions that were signed for them (contract 5.2; security A-25).

-- name: open_lane
INSERT INTO signer_lanes (network, signer, next_nonce) VALUES (:network, :signer, :chain_nonce)
ON CONFLICT (network, signer) DO UPDATE SET
    next_nonce = CASE WHEN signer_lanes.next_nonce < :chain_nonce THEN :chain_nonce ELSE signer_lanes.next_nonce END
RETURNING next_nonce;

-- name: read_lane
SELECT next_nonce FROM signer_lanes WHERE network = :network AND signer = :signer;

-- name: take_nonce
UPDATE signer_lanes SET next_nonce = next_nonce + 1
WHERE network = :network AND signer = :signer
RETURNING next_nonce - 1 AS signer_nonce;

-- name: add_transaction
INSERT INTO raw_transactions (hash, network, signer, signer_nonce, raw, created_ms, gas_counted, gas_trusted)
VALUES (:hash, :network, :signer, :signer_nonce, :raw, :created_ms, :gas_counted, :gas_trusted)
ON CONFLICT DO NOTHING
RETURNING hash;

-- name: add_filler
-- Only where the nonce is still nobody's: a settlement may have been signed under it since it was seen to be free.
INSERT INTO raw_transactions (hash, network, signer, signer_nonce, raw, created_ms, gas_counted)
SELECT :hash, :network, :signer, :signer_nonce, :raw, :created_ms, :gas_counted
WHERE NOT EXISTS (
    SELECT 1 FROM raw_transactions WHERE network = :network AND signer = :signer AND signer_nonce = :signer_nonce
)
RETURNING hash;

-- name: add_to_slot
INSERT INTO settlement_slots (settlement_id, attempt, network, signer, signer_nonce)
VALUES (:settlement_id, :attempt, :network, :signer, :signer_nonce)
ON CONFLICT DO NOTHING;

-- Nothing that was mined is replaced, whatever a node that is behind says of its nonce.
-- name: add_replacement
INSERT INTO raw_transactions (hash, network, signer, signer_nonce, raw, created_ms, gas_counted)
SELECT :hash, :network, :signer, :signer_nonce, :raw, :created_ms, :gas_counted
WHERE NOT EXISTS (
    SELECT 1 FROM settlement_slots JOIN settlements ON settlements.id = settlement_slots.settlement_id
    WHERE settlement_slots.network = :network AND settlement_slots.signer = :signer
        AND settlement_slots.signer_nonce = :signer_nonce AND settlement_slots.attempt = settlements.attempt
        AND settlements.state IN ('MINED', 'CONFIRMED')
)
ON CONFLICT DO NOTHING
RETURNING hash;

-- name: transactions_of_settlement
SELECT raw_transactions.* FROM settlement_slots
JOIN raw_transactions ON raw_transactions.network = settlement_slots.network
    AND raw_transactions.signer = settlement_slots.signer
    AND raw_transactions.signer_nonce = settlement_slots.signer_nonce
WHERE settlement_slots.settlement_id = :settlement_id AND settlement_slots.attempt = :attempt
ORDER BY raw_transactions.created_ms DESC, raw_transactions.hash;

-- name: transactions_of_earlier_attempts
SELECT raw_transactions.* FROM settlement_slots
JOIN raw_transactions ON raw_transactions.network = settlement_slots.network
    AND raw_transactions.signer = settlement_slots.signer
    AND raw_transactions.signer_nonce = settlement_slots.signer_nonce
WHERE settlement_slots.settlement_id = :settlement_id AND settlement_slots.attempt < :attempt
ORDER BY raw_transactions.created_ms DESC, raw_transactions.hash;

-- With one of the settlements that it is to carry out, and who carries that one forward.
-- name: transactions_after
SELECT raw_transactions.*, settlements.id AS settlement_id, settlements.holder AS holder FROM raw_transactions
LEFT JOIN settlements ON settlements.id = (
    SELECT MIN(settlement_slots.settlement_id) FROM settlement_slots
    WHERE settlement_slots.network = raw_transactions.network AND settlement_slots.signer = raw_transactions.signer
        AND settlement_slots.signer_nonce = raw_transactions.signer_nonce
)
WHERE raw_transactions.network = :network AND raw_transactions.signer = :signer AND (
    signer_nonce > :signer_nonce
    OR (signer_nonce = :signer_nonce AND (
        raw_transactions.created_ms > :created_ms
        OR (raw_transactions.created_ms = :created_ms AND raw_transactions.hash > :hash)
    ))
)
ORDER BY signer_nonce, raw_transactions.created_ms, raw_transactions.hash LIMIT :limit;

-- name: settlements_of_slot
SELECT settlements.* FROM settlement_slots JOIN settlements ON settlements.id = settlement_slots.settlement_id
    AND settlements.attempt = settlement_slots.attempt
WHERE settlement_slots.network = :network AND settlement_slots.signer = :signer
    AND settlement_slots.signer_nonce = :signer_nonce
ORDER BY settlements.id;

-- What the last hour's transactions may have cost, by whether a trusted gateway asked for them.
-- name: read_gas
SELECT is_trusted, CAST(SUM(gas) AS BIGINT) AS gas FROM gas_spent WHERE network = :network AND minute > :after_minute GROUP BY is_trusted;

-- name: add_gas
INSERT INTO gas_spent (network, minute, is_trusted, gas) VALUES (:network, :minute, :is_trusted, :gas)
ON CONFLICT (network, minute, is_trusted) DO UPDATE SET gas = gas_spent.gas + :gas;

-- name: take_back_gas
UPDATE gas_spent SET gas = gas - :gas WHERE network = :network AND minute = :minute AND is_trusted = :is_trusted;

-- What of that was for one tenant.
-- name: read_gas_of_tenant
SELECT COALESCE(CAST(SUM(gas) AS BIGINT), 0) AS gas FROM gas_of_tenants
WHERE network = :network AND tenant = :tenant AND minute > :after_minute;

-- name: add_gas_of_tenant
INSERT INTO gas_of_tenants (network, tenant, minute, gas) VALUES (:network, :tenant, :minute, :gas)
ON CONFLICT (network, tenant, minute) DO UPDATE SET gas = gas_of_tenants.gas + :gas;

-- Of a transaction of one settlement alone: whose it was stands in its row.
-- name: take_back_gas_of_tenant
UPDATE gas_of_tenants SET gas = gas - :gas
WHERE network = :network AND minute = :minute
    AND tenant = (SELECT tenant FROM settlements WHERE id = :settlement_id);

-- name: drop_old_gas_of_tenants
DELETE FROM gas_of_tenants WHERE network = :network AND minute <= :after_minute;

-- name: uncount_transaction
UPDATE raw_transactions SET gas_counted = 0, gas_trusted = 0 WHERE hash = :hash;

-- name: drop_old_gas
DELETE FROM gas_spent WHERE network = :network AND minute <= :after_minute;

-- What the transactions of a nonce have added to the gas of the last hour, and for how many requests of gateways.
-- name: read_counted
SELECT COALESCE(CAST(SUM(gas_counted) AS BIGINT), 0) AS gas, (
    SELECT COUNT(*) FROM settlement_slots JOIN settlements ON settlements.id = settlement_slots.settlement_id
    WHERE settlement_slots.network = :network AND settlement_slots.signer = :signer
        AND settlement_slots.signer_nonce = :signer_nonce AND settlements.purchase_data IS NOT NULL
) AS trusted
FROM raw_transactions
WHERE network = :network AND signer = :signer AND signer_nonce = :signer_nonce AND created_ms >= :after_ms;
