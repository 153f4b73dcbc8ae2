-- A sale's payment is looked at again while a reorganisation may still take it away. `paid_ms`: since when it is known to
-- be paid; `follow_ms`: when it is looked at next, NULL once its outcome stands.
ALTER TABLE purchases ADD COLUMN paid_ms BIGINT;
ALTER TABLE purchases ADD COLUMN follow_ms BIGINT;
CREATE INDEX purchases_followed ON purchases (state, follow_ms) WHERE follow_ms IS NOT NULL;

-- What was sold last before, and what is held, is looked at too.
UPDATE purchases SET paid_ms = granted_ms, follow_ms = granted_ms
WHERE state = 'LIVE' AND confirmed = 1 AND honoured_ms IS NULL
    AND (failure IS NOT NULL OR granted_ms >= (SELECT max(updated_ms) - 900000 FROM purchases));

DROP VIEW holdings;
CREATE VIEW holdings AS
SELECT p.*, coalesce(c.granted, 0) AS granted, coalesce(c.remaining, 0) AS remaining,
    coalesce(c.token_used, 0) AS token_used, c.expires_ms
FROM purchases p LEFT JOIN credits c ON c.number = p.number;
