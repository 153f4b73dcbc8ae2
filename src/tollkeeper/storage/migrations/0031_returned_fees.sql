-- Fees of direct transfers that were given back because the transfer's transaction had failed in its block: a reorganisation
-- may have it succeed. `failed_ms`: since when it is known to have failed; `follow_ms`: when it is looked at next, NULL once
-- it was made (`made_ms`: since when that is known), and the fee is owed.
CREATE TABLE returned_fees (
    call_id TEXT PRIMARY KEY,
    network TEXT NOT NULL,
    asset TEXT NOT NULL,
    payer TEXT NOT NULL,
    nonce TEXT NOT NULL,
    transaction_hash TEXT NOT NULL,
    failed_ms BIGINT NOT NULL,
    follow_ms BIGINT,
    made_ms BIGINT
);
