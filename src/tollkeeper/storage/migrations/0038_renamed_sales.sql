-- `is_renamed`: the payment is in another transaction than the sale named first, so that whoever remembers the sale is to
-- read it anew before its credits are taken.
ALTER TABLE credits ADD COLUMN is_renamed BIGINT NOT NULL DEFAULT 0;
