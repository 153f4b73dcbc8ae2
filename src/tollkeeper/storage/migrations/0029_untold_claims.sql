-- `untold_ms`: since when our hub has not told what became of a claim's attempt that it has decided; NULL while it did.
ALTER TABLE purchases ADD COLUMN untold_ms BIGINT;
