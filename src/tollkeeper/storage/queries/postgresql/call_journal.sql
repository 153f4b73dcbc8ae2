-- name: spent_in_journal
SELECT c.key AS call_id, j.number AS journal_number, p.*
FROM call_journal j, json_each_text(j.spent::json) AS c (key, value), holdings p
WHERE j.number BETWEEN :first AND :last
    AND c.key IN (SELECT w.value FROM json_array_elements_text(CAST(:calls AS json)) AS w (value))
    AND p.number = c.value::bigint;

-- name: not_given_back
SELECT c.value AS id FROM json_array_elements_text(CAST(:calls AS json)) AS c (value)
WHERE NOT EXISTS (SELECT 1 FROM credits_given g WHERE g.cause = c.value AND g.reason = 'restore');
