-- Rows of one statement are locked in one order, for other nodes write the same ones.

-- name: add_outcomes
INSERT INTO traffic_hours (gate_id, hour_ms, outcome, requests)
SELECT (c.value ->> 0)::bigint, (c.value ->> 1)::bigint, c.value ->> 2, (c.value ->> 3)::bigint
FROM json_array_elements(CAST(:counted AS json)) AS c (value) ORDER BY 1, 2, 3
ON CONFLICT (gate_id, hour_ms, outcome) DO UPDATE SET requests = traffic_hours.requests + excluded.requests;

-- name: add_latencies
INSERT INTO latency_hours (gate_id, hour_ms, bucket, calls)
SELECT (c.value ->> 0)::bigint, (c.value ->> 1)::bigint, (c.value ->> 2)::bigint, (c.value ->> 3)::bigint
FROM json_array_elements(CAST(:counted AS json)) AS c (value) ORDER BY 1, 2, 3
ON CONFLICT (gate_id, hour_ms, bucket) DO UPDATE SET calls = latency_hours.calls + excluded.calls;

-- name: insert_requests
INSERT INTO requests (id, gate_id, at_ms, method, status, outcome, code, duration_us, purchase_id)
SELECT c.value ->> 0, (c.value ->> 1)::bigint, (c.value ->> 2)::bigint, c.value ->> 3, (c.value ->> 4)::bigint,
    c.value ->> 5, c.value ->> 6, (c.value ->> 7)::bigint, c.value ->> 8
FROM json_array_elements(CAST(:logged AS json)) AS c (value)
ON CONFLICT (id) DO NOTHING;

-- name: forget_outcomes
DELETE FROM traffic_hours WHERE (gate_id, hour_ms, outcome) IN (
    SELECT (c.value ->> 0)::bigint, (c.value ->> 1)::bigint, c.value ->> 2
    FROM json_array_elements(CAST(:old AS json)) AS c (value)
);

-- name: forget_latencies
DELETE FROM latency_hours WHERE (gate_id, hour_ms, bucket) IN (
    SELECT (c.value ->> 0)::bigint, (c.value ->> 1)::bigint, (c.value ->> 2)::bigint
    FROM json_array_elements(CAST(:old AS json)) AS c (value)
);
