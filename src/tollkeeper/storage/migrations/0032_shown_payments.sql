-- `shown_in`: the transaction of an earlier attempt at a claim, which failed and shows its payment to everybody; NULL where
-- there was none.
ALTER TABLE purchases ADD COLUMN shown_in TEXT;
