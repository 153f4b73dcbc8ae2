-- What gates earned, beyond what 64 bits count: `revenue_high` times 10^18, and `revenue_micro`, which is less than that.
ALTER TABLE paygate_counters ADD COLUMN revenue_high BIGINT NOT NULL DEFAULT 0;
UPDATE paygate_counters SET revenue_high = revenue_micro / 1000000000000000000,
    revenue_micro = revenue_micro % 1000000000000000000
WHERE revenue_micro >= 1000000000000000000;
