-- What is under way of a payer's, and what failed of it at our cost within the hour, bound what it may have us sign.
CREATE INDEX settlements_under_way ON settlements (network, payer, created_ms)
    WHERE state IN ('CLAIMED', 'SIGNED', 'BROADCAST');
CREATE TABLE payer_failures (
    network TEXT NOT NULL,
    payer TEXT NOT NULL,
    minute BIGINT NOT NULL,
    failures BIGINT NOT NULL,
    PRIMARY KEY (network, payer, minute)
);

-- What a transaction added to the gas of the hour that it was signed in: what takes its nonce adds only what is missing.
-- Of what an earlier version signed nothing is known, so what replaces that counts in full.
ALTER TABLE raw_transactions ADD COLUMN gas_counted BIGINT NOT NULL DEFAULT 0;
