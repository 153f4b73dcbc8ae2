-- name: purchases_of_payments
SELECT w.place - 1 AS place, p.*, g.version AS gate_version_now, g.deleted_ms AS gate_deleted_ms
FROM json_array_elements(CAST(:wanted AS json)) WITH ORDINALITY AS w (value, place), holdings p, paygates g
WHERE p.network = w.value ->> 0 AND p.asset = w.value ->> 1 AND p.payer = w.value ->> 2 AND p.nonce = w.value ->> 3
    AND g.id = p.gate_id;

-- name: purchases_of_ids
SELECT w.place - 1 AS place, p.*, g.version AS gate_version_now, g.deleted_ms AS gate_deleted_ms
FROM json_array_elements_text(CAST(:wanted AS json)) WITH ORDINALITY AS w (value, place), holdings p, paygates g
WHERE p.id = w.value AND g.id = p.gate_id;

-- name: spend_credits
UPDATE credits SET
    remaining = credits.remaining - w.spent,
    token_used = CASE WHEN w.token_used = 1 THEN 1 ELSE credits.token_used END
FROM (
    SELECT (c.value ->> 0)::bigint AS number, (c.value ->> 1)::bigint AS spent, (c.value ->> 2)::bigint AS token_used
    FROM json_array_elements(CAST(:spent AS json)) AS c (value)
) AS w
WHERE credits.number = w.number AND credits.is_live = 1 AND credits.remaining >= w.spent
    AND (credits.expires_ms IS NULL OR credits.expires_ms > :now_ms)
RETURNING credits.number;

-- name: insert_calls
INSERT INTO single_calls (id, purchase_id, state, created_ms)
SELECT w.key, w.value, 'DISPATCHED', :now_ms FROM json_each_text(CAST(:calls AS json)) AS w (key, value);

-- name: end_calls
UPDATE single_calls SET state = 'DONE', status = :status, ended_ms = :now_ms
WHERE id IN (SELECT w.value FROM json_array_elements_text(CAST(:ended AS json)) AS w (value)) AND state = 'DISPATCHED';
