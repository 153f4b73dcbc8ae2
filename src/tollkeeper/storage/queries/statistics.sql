-- Statistics and the request log of gates. Values are summed in two parts, billions and the rest, as in `gateway.sql`.

-- name: outcomes_of_gate
SELECT hour_ms, outcome, requests FROM traffic_hours
WHERE gate_id = :gate_id AND hour_ms >= :from_ms AND hour_ms < :to_ms AND outcome <> 'notLogged';

-- name: outcomes_of_owner
SELECT t.hour_ms, t.outcome, CAST(sum(t.requests) AS BIGINT) AS requests
FROM traffic_hours t JOIN paygates p ON p.id = t.gate_id
WHERE p.owner_wallet = :owner_wallet AND t.hour_ms >= :from_ms AND t.hour_ms < :to_ms AND t.outcome <> 'notLogged'
GROUP BY t.hour_ms, t.outcome;

-- name: not_logged_of_gate
SELECT coalesce(CAST(sum(requests) AS BIGINT), 0) AS requests FROM traffic_hours
WHERE gate_id = :gate_id AND hour_ms >= :from_ms AND outcome = :outcome;

-- name: latencies_of_gate
SELECT hour_ms, bucket, calls FROM latency_hours
WHERE gate_id = :gate_id AND hour_ms >= :from_ms AND hour_ms < :to_ms;

-- name: latencies_of_owner
SELECT t.hour_ms, t.bucket, CAST(sum(t.calls) AS BIGINT) AS calls
FROM latency_hours t JOIN paygates p ON p.id = t.gate_id
WHERE p.owner_wallet = :owner_wallet AND t.hour_ms >= :from_ms AND t.hour_ms < :to_ms
GROUP BY t.hour_ms, t.bucket;

-- name: sales_of_gate
SELECT granted_ms / 3600000 * 3600000 AS hour_ms, count(*) AS purchases,
    CAST(sum(CAST(value_micro AS BIGINT) / 1000000000) AS BIGINT) AS revenue_high,
    CAST(sum(CAST(value_micro AS BIGINT) % 1000000000) AS BIGINT) AS revenue_low
FROM purchases WHERE gate_id = :gate_id AND granted_ms >= :from_ms AND granted_ms < :to_ms
    AND (state <> 'VOID' OR failure LIKE 'gate_deleted%')
GROUP BY granted_ms / 3600000;

-- name: sales_of_owner
SELECT granted_ms / 3600000 * 3600000 AS hour_ms, count(*) AS purchases,
    CAST(sum(CAST(value_micro AS BIGINT) / 1000000000) AS BIGINT) AS revenue_high,
    CAST(sum(CAST(value_micro AS BIGINT) % 1000000000) AS BIGINT) AS revenue_low
FROM purchases u JOIN paygates p ON p.id = u.gate_id
WHERE p.owner_wallet = :owner_wallet AND granted_ms >= :from_ms AND granted_ms < :to_ms
    AND (state <> 'VOID' OR failure LIKE 'gate_deleted%')
GROUP BY granted_ms / 3600000;

-- name: outstanding_of_gate
-- What was paid, by the credits that are left; in two parts, so that no product is larger than the largest integer.
SELECT coalesce(CAST(sum(remaining) AS BIGINT), 0) AS credits,
    coalesce(CAST(sum(left_micro / 1000000000) AS BIGINT), 0) AS value_high, coalesce(CAST(sum(left_micro % 1000000000) AS BIGINT), 0) AS value_low
FROM (
    SELECT remaining, CAST(value_micro AS BIGINT) / granted * remaining
        + CAST(value_micro AS BIGINT) % granted * remaining / granted AS left_micro
    FROM holdings WHERE gate_id = :gate_id AND state = 'LIVE' AND remaining > 0
        AND (expires_ms IS NULL OR expires_ms > :now_ms)
) AS held;

-- CROSS JOIN: from the owner's gates, and not from all that anybody has left.
-- name: outstanding_of_owner
SELECT coalesce(CAST(sum(remaining) AS BIGINT), 0) AS credits,
    coalesce(CAST(sum(left_micro / 1000000000) AS BIGINT), 0) AS value_high, coalesce(CAST(sum(left_micro % 1000000000) AS BIGINT), 0) AS value_low
FROM (
    SELECT remaining, CAST(value_micro AS BIGINT) / granted * remaining
        + CAST(value_micro AS BIGINT) % granted * remaining / granted AS left_micro
    FROM paygates p CROSS JOIN holdings u
    WHERE p.owner_wallet = :owner_wallet AND u.gate_id = p.id AND u.state = 'LIVE' AND remaining > 0
        AND (u.expires_ms IS NULL OR u.expires_ms > :now_ms)
) AS held;

-- name: requests_of_gate
SELECT id, at_ms, method, status, outcome, code, duration_us, purchase_id FROM requests
WHERE gate_id = :gate_id AND (:outcome = '' OR outcome = :outcome) AND (at_ms, id) <= (
    SELECT at_ms, id FROM requests WHERE gate_id = :gate_id AND (:outcome = '' OR outcome = :outcome)
    ORDER BY at_ms DESC, id DESC LIMIT 1 OFFSET :offset
)
ORDER BY at_ms DESC, id DESC LIMIT :limit;

-- name: count_requests_of_gate
SELECT count(*) AS total FROM requests WHERE gate_id = :gate_id AND (:outcome = '' OR outcome = :outcome);

-- name: is_logged
SELECT id FROM requests WHERE id = :id;

-- name: count_traffic
UPDATE paygate_counters
SET challenges = challenges + :challenges, calls = calls + :calls, failures = failures + :failures
WHERE gate_id = :gate_id;

-- What is old is deleted a little at a time: whoever spends a credit waits for each of these.

-- name: forget_requests
DELETE FROM requests WHERE id IN (SELECT id FROM requests WHERE at_ms < :before_ms ORDER BY at_ms LIMIT :many)
RETURNING id;

-- Sums by gate, as their primary keys begin: without it every row would be read.

-- name: old_outcomes
SELECT t.gate_id, t.hour_ms, t.outcome AS part FROM paygates p CROSS JOIN traffic_hours t
WHERE t.gate_id = p.id AND t.hour_ms < :before_ms LIMIT :many;

-- name: old_latencies
SELECT t.gate_id, t.hour_ms, t.bucket AS part FROM paygates p CROSS JOIN latency_hours t
WHERE t.gate_id = p.id AND t.hour_ms < :before_ms LIMIT :many;

-- name: sold_in_all
SELECT coalesce(CAST(sum(purchases) AS BIGINT), 0) AS purchases FROM paygate_counters;

-- name: unfinished_purchases
SELECT state, count(*) AS purchases FROM purchases WHERE state IN ('CLAIMED', 'PARKED') GROUP BY state;
