-- Refusals stand under no settlement: as long as an index told them so, alike, all that are kept were read and sorted for
-- every handful that is forgotten, and their own index (`idempotency_refused`) was left alone.
DROP INDEX idempotency_by_settlement;
CREATE INDEX idempotency_by_settlement ON idempotency (settlement_id, attempt) WHERE settlement_id IS NOT NULL;
