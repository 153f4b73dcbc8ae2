-- A payment that was shown to spend a held credit is a purchase in the state SHOWN, so that one identity is claimed or shown,
-- and never both. It is forgotten once its chain can use it no more: `kept_until` is in Unix seconds on EVM, a height on Solana.
ALTER TABLE purchases ADD COLUMN kept_until BIGINT;
CREATE INDEX purchases_shown ON purchases (network, kept_until) WHERE state = 'SHOWN';
-- Does a payment of x402 version 1 spend a credit that its payer holds, in place of buying more?
ALTER TABLE paygates ADD COLUMN payer_proof BIGINT NOT NULL DEFAULT 0;
