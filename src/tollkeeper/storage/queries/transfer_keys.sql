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

-- name: forget_keys
DELETE FROM transfer_keys WHERE changed_ms <= :since_ms;
