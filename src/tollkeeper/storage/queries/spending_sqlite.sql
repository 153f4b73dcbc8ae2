-- The spends of a batch, each statement once for all of them, as SQLite says it. Lists go in as JSON arrays of arrays.
-- Another engine has a file of its own with the same names and columns: where this one says `json_each(:wanted)` and
-- `json_extract(w.value, '$[0]')`, PostgreSQL says `jsonb_array_elements(:wanted::jsonb)` and `w.value ->> 0`. A `+` keeps
-- SQLite from searching by the state, which nearly all rows share.

-- name: purchases_of_payments
-- :wanted = [[network, asset, payer, nonce], ...], none twice. `number` is the place in it.
SELECT w.key AS number, p.*, g.version AS gate_version_now, g.deleted_ms AS gate_deleted_ms
FROM json_each(:wanted) AS w CROSS JOIN purchases p CROSS JOIN paygates g
WHERE p.network = json_extract(w.value, '$[0]') AND p.asset = json_extract(w.value, '$[1]')
    AND p.payer = json_extract(w.value, '$[2]') AND p.nonce = json_extract(w.value, '$[3]') AND g.id = p.gate_id;

-- name: purchases_of_ids
-- :wanted = [purchase id, ...], none twice.
SELECT w.key AS number, p.*, g.version AS gate_version_now, g.deleted_ms AS gate_deleted_ms
FROM json_each(:wanted) AS w CROSS JOIN purchases p CROSS JOIN paygates g
WHERE p.id = w.value AND g.id = p.gate_id;

-- name: spend_credits
-- :spent = [[purchase id, credits, whether the token was used], ...], none twice.
UPDATE purchases SET
    remaining = purchases.remaining - w.spent,
    token_used = CASE WHEN w.token_used = 1 THEN 1 ELSE purchases.token_used END,
    updated_ms = :now_ms
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS spent,
        json_extract(value, '$[2]') AS token_used
    FROM json_each(:spent)
) AS w
WHERE purchases.id = w.id AND +purchases.state = 'LIVE' AND purchases.remaining >= w.spent
    AND (purchases.expires_ms IS NULL OR purchases.expires_ms > :now_ms)
RETURNING purchases.id;

-- name: standing_of_gates
-- :wanted = [gate id, ...]
SELECT id, version, deleted_ms FROM paygates WHERE id IN (SELECT value FROM json_each(:wanted));

-- name: spend_known_credits
-- As `spend_credits`, for headers: :spent = [[purchase id, credits], ...], none twice.
UPDATE purchases SET remaining = purchases.remaining - w.spent, updated_ms = :now_ms
FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS spent FROM json_each(:spent)) AS w
WHERE purchases.id = w.id AND +purchases.state = 'LIVE' AND purchases.token_used = 0 AND purchases.remaining >= w.spent
    AND (purchases.expires_ms IS NULL OR purchases.expires_ms > :now_ms)
RETURNING purchases.id, purchases.remaining;

-- name: insert_entries
-- :calls = [[call id, purchase id, gate id], ...]
INSERT INTO credit_entries (cause, reason, purchase_id, delta, created_ms)
SELECT json_extract(value, '$[0]'), 'spend', json_extract(value, '$[1]'), -1, :now_ms FROM json_each(:calls) WHERE 1 = 1;

-- name: insert_calls
-- :calls as above.
INSERT INTO calls (id, purchase_id, gate_id, state, created_ms)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), 'DISPATCHED', :now_ms
FROM json_each(:calls) WHERE 1 = 1;

-- name: end_calls
-- :ended = [[call id, status], ...]
UPDATE calls SET state = 'DONE', status = w.status, ended_ms = :now_ms
FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS status FROM json_each(:ended)) AS w
WHERE calls.id = w.id AND +calls.state = 'DISPATCHED';
