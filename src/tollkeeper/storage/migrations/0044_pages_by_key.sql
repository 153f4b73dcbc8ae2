-- Where a page of a list begins, and how many items there are, is found in an index alone, however deep the page is.
DROP INDEX requests_by_gate;
CREATE INDEX requests_by_gate ON requests (gate_id, at_ms, id, outcome);
DROP INDEX paygates_by_owner;
CREATE INDEX paygates_by_owner ON paygates (owner_wallet, id, deleted_ms, management_hash);
DROP INDEX purchases_by_payer;
CREATE INDEX purchases_by_payer ON purchases (payer, gate_id, is_used_up, state);
DROP INDEX settlements_by_payer;
CREATE INDEX settlements_by_payer ON settlements (payer, created_ms, id, network);
DROP INDEX settlements_by_recipient;
CREATE INDEX settlements_by_recipient ON settlements (pay_to, created_ms, id, network, payer);
