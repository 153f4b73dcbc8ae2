-- name: i3_a_call_is_charged_once
WITH recent AS MATERIALIZED (
    SELECT c.key AS id FROM call_journal j, json_each_text(j.spent::json) AS c (key, value)
    WHERE j.number > (SELECT max(number) FROM call_journal) - 2000
)
SELECT id AS subject, count(*) || ' credits taken' AS found
FROM (SELECT id FROM recent UNION ALL SELECT s.id FROM recent r JOIN single_calls s ON s.id = r.id) AS taken
GROUP BY id HAVING count(*) > 1;

-- name: i3_what_was_served_is_not_given_back
WITH recent AS MATERIALIZED (
    SELECT c.value AS id, CAST(s.key AS BIGINT) AS status
    FROM call_journal j, json_each(j.ended::json) s, json_array_elements_text(s.value) c (value)
    WHERE j.number > (SELECT max(number) FROM call_journal) - 2000
)
SELECT e.id AS subject, 'given back, and answered with ' || e.status AS found
FROM recent e CROSS JOIN credits_given g WHERE g.cause = e.id AND g.reason = 'restore' AND e.status < 400;
