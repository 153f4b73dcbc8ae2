-- How much of `gas_counted` counts as asked for by trusted gateways: what was never executed is taken back from the same
-- share of the hour's budget.
ALTER TABLE raw_transactions ADD COLUMN gas_trusted BIGINT NOT NULL DEFAULT 0;
