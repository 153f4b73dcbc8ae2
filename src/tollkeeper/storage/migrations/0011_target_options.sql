-- Paths below a slug, and the owner's own headers for the target: sealed JSON, NULL for none (contract 3.1, 3.4).

ALTER TABLE paygates ADD COLUMN allow_subpaths BIGINT NOT NULL DEFAULT 0;
ALTER TABLE paygates ADD COLUMN target_headers BYTEA;
