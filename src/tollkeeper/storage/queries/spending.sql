-- The spends of a batch, each statement once for all of them, as SQLite says it. Lists go in as JSON: objects where there
-- are pairs, because a key costs nothing to take out, else arrays. Another engine says the same with the same names and
-- columns; PostgreSQL word for word but for this:
--   `json_each(X) AS w` of an object is `jsonb_each_text(X::jsonb) AS w (key, value)`, of an array
--     `jsonb_array_elements_text(X::jsonb) WITH ORDINALITY AS w (value, key)`, which counts from one;
--   `w.key AS place` is `w.key - 1 AS place`;
--   `json_extract(w.value, '$[0]')` is `(w.value::jsonb ->> 0)`: a text, as all that is taken out of JSON there, so that
--     what is a number is cast here;
--   `+state`, which keeps SQLite from searching by it, is `state`.
-- Two of its sessions that change the same rows in different orders wait for each other until one of them is broken off:
-- a batch locks its rows of `credits` in the order of their numbers first.

-- name: purchases_of_payments
-- :wanted = [[network, asset, payer, nonce], ...], none twice. `place` is the place in it.
SELECT w.key AS place, p.*, g.version AS gate_version_now, g.deleted_ms AS gate_deleted_ms
FROM json_each(:wanted) AS w CROSS JOIN holdings p CROSS JOIN paygates g
WHERE p.network = json_extract(w.value, '$[0]') AND p.asset = json_extract(w.value, '$[1]')
    AND p.payer = json_extract(w.value, '$[2]') AND p.nonce = json_extract(w.value, '$[3]') AND g.id = p.gate_id;

-- name: purchases_of_ids
-- :wanted = [purchase id, ...], none twice.
SELECT w.key AS place, p.*, g.version AS gate_version_now, g.deleted_ms AS gate_deleted_ms
FROM json_each(:wanted) AS w CROSS JOIN holdings p CROSS JOIN paygates g
WHERE p.id = w.value AND g.id = p.gate_id;

-- name: spend_credits
-- :spent = [[number of a purchase, credits, whether the token was used], ...], none twice.
UPDATE credits SET
    remaining = credits.remaining - w.spent,
    token_used = CASE WHEN w.token_used = 1 THEN 1 ELSE credits.token_used END
FROM (
    SELECT CAST(json_extract(c.value, '$[0]') AS BIGINT) AS number,
        CAST(json_extract(c.value, '$[1]') AS BIGINT) AS spent,
        CAST(json_extract(c.value, '$[2]') AS BIGINT) AS token_used
    FROM json_each(:spent) AS c
) AS w
WHERE credits.number = w.number AND credits.is_live = 1 AND credits.remaining >= w.spent
    AND (credits.expires_ms IS NULL OR credits.expires_ms > :now_ms)
RETURNING credits.number;

-- name: standing_of_gates
-- :wanted = [gate id, ...]
SELECT id, version, deleted_ms FROM paygates WHERE id IN (SELECT CAST(w.value AS BIGINT) FROM json_each(:wanted) AS w);

-- name: spend_known_credits
-- As `spend_credits`, for headers: :spent = {number of a purchase: credits, ...}. What is remembered of a renamed one names
-- another transaction than the one that stands.
UPDATE credits SET remaining = credits.remaining - CAST(w.value AS BIGINT)
FROM json_each(:spent) AS w
WHERE credits.number = CAST(w.key AS BIGINT) AND credits.is_live = 1 AND credits.token_used = 0
    AND credits.is_renamed = 0 AND credits.remaining >= CAST(w.value AS BIGINT)
    AND (credits.expires_ms IS NULL OR credits.expires_ms > :now_ms)
RETURNING credits.number, credits.remaining;

-- name: insert_calls
-- :calls = {call id: purchase id, ...}
INSERT INTO single_calls (id, purchase_id, state, created_ms)
SELECT w.key, w.value, 'DISPATCHED', :now_ms FROM json_each(:calls) AS w;

-- name: end_calls
-- :ended = [call id, ...]
UPDATE single_calls SET state = 'DONE', status = :status, ended_ms = :now_ms
WHERE id IN (SELECT w.value FROM json_each(:ended) AS w) AND +state = 'DISPATCHED';
