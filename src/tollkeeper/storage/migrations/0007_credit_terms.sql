-- What a later call must show, what becomes of a credit when the target fails, and how long credits last (contract 4.3).

ALTER TABLE paygates ADD COLUMN credit_binding TEXT NOT NULL DEFAULT 'payment';
ALTER TABLE paygates ADD COLUMN on_failure TEXT NOT NULL DEFAULT 'consume';
ALTER TABLE paygates ADD COLUMN credits_expire_after_seconds BIGINT;

-- Of the terms that were claimed; `expires_ms` counts from the grant.
ALTER TABLE purchases ADD COLUMN credits_expire_after_seconds BIGINT;
ALTER TABLE purchases ADD COLUMN expires_ms BIGINT;
