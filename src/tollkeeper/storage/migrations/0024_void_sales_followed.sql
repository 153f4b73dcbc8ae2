-- A sale that is void because its payment failed is looked at again, for its failure may be taken back; one whose gate was
-- deleted is not. So what is due is found whatever its state.
UPDATE purchases SET follow_ms = NULL WHERE state = 'VOID';
DROP INDEX purchases_followed;
CREATE INDEX purchases_followed ON purchases (follow_ms) WHERE follow_ms IS NOT NULL;
