-- What gates were asked, counted and logged: each statement once for all of it, as SQLite says it. Another engine has a file
-- of its own; what it says in place of `json_each` is told in `spending.sql`.

-- name: add_outcomes
-- :counted = [[gate id, hour, outcome, requests], ...], none twice.
INSERT INTO traffic_hours (gate_id, hour_ms, outcome, requests)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]')
FROM json_each(:counted) WHERE 1 = 1
ON CONFLICT (gate_id, hour_ms, outcome) DO UPDATE SET requests = traffic_hours.requests + excluded.requests;

-- name: add_latencies
-- :counted = [[gate id, hour, bucket, calls], ...], none twice.
INSERT INTO latency_hours (gate_id, hour_ms, bucket, calls)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]')
FROM json_each(:counted) WHERE 1 = 1
ON CONFLICT (gate_id, hour_ms, bucket) DO UPDATE SET calls = latency_hours.calls + excluded.calls;

-- name: insert_requests
-- :logged = [[id, gate id, time, method, status, outcome, code, duration, purchase id], ...]
INSERT INTO requests (id, gate_id, at_ms, method, status, outcome, code, duration_us, purchase_id)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]'),
    json_extract(value, '$[4]'), json_extract(value, '$[5]'), json_extract(value, '$[6]'), json_extract(value, '$[7]'),
    json_extract(value, '$[8]')
FROM json_each(:logged) WHERE 1 = 1
ON CONFLICT (id) DO NOTHING;

-- name: forget_outcomes
-- :old = [[gate id, hour, outcome], ...]
DELETE FROM traffic_hours WHERE (gate_id, hour_ms, outcome) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]') FROM json_each(:old)
);

-- name: forget_latencies
-- :old = [[gate id, hour, bucket], ...]
DELETE FROM latency_hours WHERE (gate_id, hour_ms, bucket) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]') FROM json_each(:old)
);
