-- name: find_key
SELECT key FROM transfer_keys WHERE name = :name;

-- name: renew_key
-- Of those that were refused under the former key one sets the next.
INSERT INTO transfer_keys (name, key, changed_ms) VALUES (:name, :key, :now_ms)
ON CONFLICT (name) DO UPDATE SET key = excluded.key, changed_ms = excluded.changed_ms
WHERE transfer_keys.key = :former
RETURNING key;

-- name: bind_key
INSERT INTO transfer_keys (name, key, changed_ms) VALUES (:name, :key, :now_ms)
ON CONFLICT (name) DO NOTHING
RETURNING key;

-- name: keep_key
INSERT INTO transfer_keys (name, key, changed_ms) VALUES (:name, :key, :now_ms)
ON CONFLICT (name) DO NOTHING;

-- name: drop_key
DELETE FROM transfer_keys WHERE name = :name AND key = :key;

-- name: forget_key
DELETE FROM transfer_keys WHERE name = :name AND changed_ms <= :since_ms;

-- Of the others a handful each, for whoever spends a credit waits: many may have come on one day.
-- name: forget_keys
DELETE FROM transfer_keys WHERE name IN (
    SELECT name FROM transfer_keys WHERE changed_ms <= :since_ms ORDER BY changed_ms LIMIT 64
);
