-- What proves a payment's end, which sales an operator honoured by hand, and how far the chain was compared (security 5).
ALTER TABLE purchases ADD COLUMN valid_before_seconds BIGINT;
ALTER TABLE purchases ADD COLUMN honoured_ms BIGINT;

-- The first block that was not compared yet.
CREATE TABLE chain_cursors (
    network TEXT NOT NULL,
    asset TEXT NOT NULL,
    next_block BIGINT NOT NULL,
    PRIMARY KEY (network, asset)
);
