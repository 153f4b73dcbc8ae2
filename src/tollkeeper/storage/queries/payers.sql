-- What payers have under way, and what failed of theirs at our cost (contract 5.2; security A-24).

-- Payments under way, the oldest first, because they are the likeliest to be mined already; and a last row that sums up
-- the failures. One statement, since every claim asks.
-- name: read_payer
SELECT nonce, value, NULL AS failures, NULL AS first_minute FROM (
    SELECT nonce, value FROM settlements
    WHERE network = :network AND payer = :payer AND asset = :asset AND state IN ('CLAIMED', 'SIGNED', 'BROADCAST')
    ORDER BY created_ms LIMIT :limit
) AS under_way
UNION ALL
SELECT NULL, NULL, CAST(SUM(failures) AS BIGINT), MIN(minute) FROM payer_failures
WHERE network = :network AND payer = :payer AND minute > :after_minute;

-- name: add_failure
INSERT INTO payer_failures (network, payer, minute, failures) VALUES (:network, :payer, :minute, 1)
ON CONFLICT (network, payer, minute) DO UPDATE SET failures = payer_failures.failures + 1;

-- name: drop_old_failures
DELETE FROM payer_failures WHERE network = :network AND minute <= :after_minute;
