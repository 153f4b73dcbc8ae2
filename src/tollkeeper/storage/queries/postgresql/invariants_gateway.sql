-- name: i3_a_call_is_charged_once
WITH recent AS MATERIALIZED (
    SELECT c.key AS id FROM call_journal j, json_each_text(j.spent::json) AS c (key, value)
    WHERE j.number > (SELECT max(number) FROM call_journal) - 2000
)
SELECT id AS subject, count(*) || ' credits taken' AS found
FROM (SELECT id FROM recent UNION ALL SELECT s.id FROM recent r JOIN single_calls s ON s.id = r.id) AS taken
GROUP BY id HAVING count(*) > 1;
