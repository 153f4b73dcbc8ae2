-- Refusals that are kept for a caller's key are found by their age, to be forgotten.
CREATE INDEX idempotency_refused ON idempotency (created_ms) WHERE settlement_id IS NULL;
