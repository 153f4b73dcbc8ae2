-- Further networks that a gate is paid on, and who is paid there: sealed JSON, NULL for none (contract 3.1).

ALTER TABLE paygates ADD COLUMN accepts BYTEA;
ALTER TABLE paygate_versions ADD COLUMN accepts BYTEA;
