-- Whether a gate's answers are passed on as they come (contract 4.7).

ALTER TABLE paygates ADD COLUMN stream BIGINT NOT NULL DEFAULT 0;
