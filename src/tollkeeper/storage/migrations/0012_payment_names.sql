-- Another public name of a payment: on Solana its payer's signature, beside the hash of the message, which is its nonce.
ALTER TABLE settlements ADD COLUMN alias TEXT NOT NULL DEFAULT '';
CREATE INDEX settlements_by_alias ON settlements (network, alias) WHERE alias <> '';
CREATE INDEX settlements_by_nonce ON settlements (network, nonce);
