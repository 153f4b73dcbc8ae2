-- name: add_to_days
INSERT INTO call_days (purchase_number, day, calls, folded, given_back)
SELECT (w.value ->> 0)::bigint, (w.value ->> 1)::bigint, (w.value ->> 2)::bigint, (w.value ->> 3)::bigint, (w.value ->> 4)::bigint
FROM json_array_elements(CAST(:added AS json)) AS w (value)
ON CONFLICT (purchase_number, day) DO UPDATE SET calls = call_days.calls + excluded.calls,
    folded = call_days.folded + excluded.folded, given_back = call_days.given_back + excluded.given_back;

-- name: take_restores
DELETE FROM credits_given
WHERE reason = 'restore' AND cause IN (SELECT w.value FROM json_array_elements_text(CAST(:calls AS json)) AS w (value))
RETURNING cause;

-- name: delete_single_calls
DELETE FROM single_calls WHERE id IN (SELECT w.value FROM json_array_elements_text(CAST(:calls AS json)) AS w (value));
