-- Everything that is sealed (AES-256-GCM), read in pages and replaced value by value. A value that somebody else
-- changed meanwhile is left alone: whoever did sealed it under the newer key.

-- name: page_paygates
SELECT id, payment_address, accepts, target_headers FROM paygates WHERE id > :id ORDER BY id LIMIT :limit;

-- name: reseal_paygates_payment_address
UPDATE paygates SET payment_address = :sealed WHERE id = :id AND payment_address = :former RETURNING id;

-- name: reseal_paygates_accepts
UPDATE paygates SET accepts = :sealed WHERE id = :id AND accepts = :former RETURNING id;

-- name: reseal_paygates_target_headers
UPDATE paygates SET target_headers = :sealed WHERE id = :id AND target_headers = :former RETURNING id;

-- name: page_paygate_versions
SELECT gate_id, version, pay_to, accepts FROM paygate_versions WHERE (gate_id, version) > (:gate_id, :version)
ORDER BY gate_id, version LIMIT :limit;

-- name: reseal_paygate_versions_pay_to
UPDATE paygate_versions SET pay_to = :sealed
WHERE gate_id = :gate_id AND version = :version AND pay_to = :former RETURNING gate_id;

-- name: reseal_paygate_versions_accepts
UPDATE paygate_versions SET accepts = :sealed
WHERE gate_id = :gate_id AND version = :version AND accepts = :former RETURNING gate_id;

-- name: page_purchases
SELECT id, pay_to, request FROM purchases WHERE id > :id ORDER BY id LIMIT :limit;

-- name: reseal_purchases_pay_to
UPDATE purchases SET pay_to = :sealed WHERE id = :id AND pay_to = :former RETURNING id;

-- name: reseal_purchases_request
UPDATE purchases SET request = :sealed WHERE id = :id AND request = :former RETURNING id;

-- name: page_paygate_secrets
SELECT key_id, secret FROM paygate_secrets WHERE key_id > :key_id ORDER BY key_id LIMIT :limit;

-- name: reseal_paygate_secrets_secret
UPDATE paygate_secrets SET secret = :sealed WHERE key_id = :key_id AND secret = :former RETURNING key_id;

-- name: page_creations
SELECT scope, key, answer FROM creations WHERE (scope, key) > (:scope, :key) ORDER BY scope, key LIMIT :limit;

-- name: reseal_creations_answer
UPDATE creations SET answer = :sealed WHERE scope = :scope AND key = :key AND answer = :former RETURNING key;

-- name: page_retired_keys
SELECT id, token_key FROM retired_keys WHERE id > :id ORDER BY id LIMIT :limit;

-- name: reseal_retired_keys_token_key
UPDATE retired_keys SET token_key = :sealed WHERE id = :id AND token_key = :former RETURNING id;

-- How much is sealed under the key whose values begin with these :size bytes.
-- name: count_sealed_under
SELECT
    (SELECT count(*) FROM paygates WHERE substr(payment_address, 1, :size) = :prefix)
    + (SELECT count(*) FROM paygates WHERE substr(accepts, 1, :size) = :prefix)
    + (SELECT count(*) FROM paygates WHERE substr(target_headers, 1, :size) = :prefix)
    + (SELECT count(*) FROM paygate_versions WHERE substr(pay_to, 1, :size) = :prefix)
    + (SELECT count(*) FROM paygate_versions WHERE substr(accepts, 1, :size) = :prefix)
    + (SELECT count(*) FROM purchases WHERE substr(pay_to, 1, :size) = :prefix)
    + (SELECT count(*) FROM purchases WHERE substr(request, 1, :size) = :prefix)
    + (SELECT count(*) FROM paygate_secrets WHERE substr(secret, 1, :size) = :prefix)
    + (SELECT count(*) FROM creations WHERE substr(answer, 1, :size) = :prefix)
    + (SELECT count(*) FROM retired_keys WHERE substr(token_key, 1, :size) = :prefix) AS total;

-- name: count_sealed
SELECT
    (SELECT count(payment_address) + count(accepts) + count(target_headers) FROM paygates)
    + (SELECT count(pay_to) + count(accepts) FROM paygate_versions)
    + (SELECT count(pay_to) + count(request) FROM purchases)
    + (SELECT count(secret) FROM paygate_secrets)
    + (SELECT count(answer) FROM creations)
    + (SELECT count(token_key) FROM retired_keys) AS total;

-- Of the gates that are sold, how many are sealed under the key whose values begin with these :size bytes.
-- name: count_gates_sealed_under
SELECT count(*) AS total FROM paygates WHERE deleted_ms IS NULL AND substr(payment_address, 1, :size) = :prefix;

-- name: count_gates
SELECT count(*) AS total FROM paygates WHERE deleted_ms IS NULL;

-- name: newest_gates
SELECT payment_address FROM paygates WHERE deleted_ms IS NULL ORDER BY id DESC LIMIT :limit;

-- name: retire_key
INSERT INTO retired_keys (id, token_key, retired_ms) VALUES (:id, :token_key, :now_ms) ON CONFLICT (id) DO NOTHING;

-- name: forget_retired_keys
DELETE FROM retired_keys WHERE id = :id;

-- name: retired_keys
SELECT id, token_key, retired_ms FROM retired_keys ORDER BY retired_ms, id;
