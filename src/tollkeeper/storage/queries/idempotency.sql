-- Callers' keys (contract 5.2): a key belongs to one request, for ever where that has an attempt at a settlement.

-- The owner's, or the other's of the very same request.
-- name: find_key
SELECT * FROM idempotency WHERE key IN (:key, :other) AND (key = :key OR fingerprint = :fingerprint)
ORDER BY key = :key DESC LIMIT 1;

-- name: add_key
INSERT INTO idempotency (key, fingerprint, settlement_id, attempt, answer, created_ms)
SELECT :key, :fingerprint, :settlement_id, :attempt, :answer, :now_ms
WHERE NOT EXISTS (SELECT 1 FROM idempotency WHERE key = :other AND fingerprint = :fingerprint)
ON CONFLICT DO NOTHING
RETURNING key;

-- Nothing was started for these; what an attempt came to stays.
-- name: forget_refusals
DELETE FROM idempotency WHERE key IN (
    SELECT key FROM idempotency WHERE settlement_id IS NULL AND created_ms <= :before_ms
    ORDER BY created_ms LIMIT :limit
)
RETURNING key;

-- name: drop_key
DELETE FROM idempotency WHERE key = :key;

-- The outcome of an attempt that failed stays with its keys when the payment is claimed again.
-- name: settle_keys
UPDATE idempotency SET answer = :answer
WHERE settlement_id = :settlement_id AND attempt = :attempt AND answer IS NULL;

-- A failure that a reorganisation disproved is no answer any more.
-- name: reopen_keys
UPDATE idempotency SET answer = NULL
WHERE settlement_id = :settlement_id AND attempt = :attempt;
