-- What a wallet bought, what a gate sold and what is sold on trust is found by an index of its own, however much of it there
-- is. `is_used_up`: not one credit of the purchase is left, as `credits` has it; a few that were bought before may lack it.
ALTER TABLE purchases ADD COLUMN is_used_up BIGINT NOT NULL DEFAULT 0;
DROP INDEX purchases_by_payer;
DROP INDEX purchases_unconfirmed;
UPDATE purchases SET is_used_up = 1 WHERE number IN (SELECT number FROM credits WHERE remaining = 0);
CREATE INDEX purchases_by_payer ON purchases (payer, gate_id, is_used_up);
CREATE INDEX purchases_granted ON purchases (gate_id, granted_ms) WHERE granted_ms IS NOT NULL;
CREATE INDEX purchases_trusted ON purchases (state, payer) WHERE assume_valid = 1 AND confirmed = 0;
CREATE INDEX purchases_trusted_at ON purchases (state, gate_id) WHERE assume_valid = 1 AND confirmed = 0;
CREATE INDEX purchases_unpaid_by ON purchases (payer) WHERE failure = 'settlement_failed';

-- Whoever takes the last credit, or gives one back, says so, in whichever statement. PostgreSQL has the two statements in
-- functions.
CREATE TRIGGER credits_opened AFTER INSERT ON credits WHEN NEW.remaining = 0
BEGIN
    UPDATE purchases SET is_used_up = 1 WHERE number = NEW.number;
END;
CREATE TRIGGER credits_changed AFTER UPDATE OF remaining ON credits WHEN (NEW.remaining = 0) <> (OLD.remaining = 0)
BEGIN
    UPDATE purchases SET is_used_up = CASE WHEN NEW.remaining = 0 THEN 1 ELSE 0 END WHERE number = NEW.number;
END;

DROP VIEW holdings;
CREATE VIEW holdings AS
SELECT p.*, coalesce(c.granted, 0) AS granted, coalesce(c.remaining, 0) AS remaining,
    coalesce(c.token_used, 0) AS token_used, c.expires_ms
FROM purchases p LEFT JOIN credits c ON c.number = p.number;
