-- `forgotten_ms`: since when the hub that made a sale's payment has no record of it, as after a restored backup; NULL while
-- it has.
ALTER TABLE purchases ADD COLUMN forgotten_ms BIGINT;
CREATE INDEX purchases_forgotten ON purchases (forgotten_ms) WHERE forgotten_ms IS NOT NULL;
