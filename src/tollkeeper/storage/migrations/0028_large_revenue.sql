-- What gates earned, beyond what 64 bits count: `revenue_high` times 10^18, and `revenue_micro`, which is less than that.
ALTER TABLE paygate_counters ADD COLUMN revenue_high BIGINT NOT NULL DEFAULT 0;
-- What had become a fraction by being too large is counted anew, as in `counters_are_the_sales`.
UPDATE paygate_counters SET revenue_high = s.high / 1000000000, revenue_micro = s.high % 1000000000 * 1000000000 + s.low
FROM (
    SELECT gate_id, sum(value_micro / 1000000000) + sum(value_micro % 1000000000) / 1000000000 AS high,
        sum(value_micro % 1000000000) % 1000000000 AS low
    FROM (
        SELECT gate_id, CAST(value_micro AS BIGINT) AS value_micro FROM purchases
        WHERE state = 'LIVE' OR (state = 'VOID' AND failure = 'gate_deleted')
    ) AS sold GROUP BY gate_id
) AS s
WHERE s.gate_id = paygate_counters.gate_id AND typeof(paygate_counters.revenue_micro) = 'real';
UPDATE paygate_counters SET revenue_high = revenue_micro / 1000000000000000000,
    revenue_micro = revenue_micro % 1000000000000000000
WHERE revenue_micro >= 1000000000000000000;
