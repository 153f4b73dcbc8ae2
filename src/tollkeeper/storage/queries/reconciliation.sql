-- The books as the chain is compared with them (security I6 to I8). Whether they agree is decided in `core`.

-- Of millions of settlements, which have thousands of recipients: from each to the next one by a step into the index, and
-- of what was paid to one no more than the first that fits (no bare network or asset, else all in it are looked at).
-- name: recipients
WITH RECURSIVE paid (pay_to) AS (
    SELECT min(pay_to) FROM settlements
    UNION ALL SELECT (SELECT min(s.pay_to) FROM settlements s WHERE s.pay_to > paid.pay_to)
    FROM paid WHERE paid.pay_to IS NOT NULL
)
SELECT pay_to FROM paid WHERE EXISTS (
    SELECT 1 FROM settlements s
    WHERE s.pay_to = paid.pay_to AND s.network || '' = :network AND s.asset || '' = :asset
        AND (:of_sales = 0 OR s.purchase_data IS NOT NULL)
);

-- name: signers
SELECT DISTINCT signer FROM signer_lanes WHERE network = :network;

-- name: first_block
SELECT min(block_number) AS number FROM settlements WHERE network = :network AND asset = :asset;

-- name: settlement_of
SELECT id, network, asset, payer, nonce, pay_to, value, state, transaction_hash, foreign_hash, block_number
FROM settlements WHERE network = :network AND asset = :asset AND payer = :payer AND nonce = :nonce;

-- name: settlements_in_blocks
-- Those whose block is known by its hash, and the others, each by an index of its own; no bare asset, else all that was
-- ever settled in it is looked at.
SELECT id, network, asset, payer, nonce, pay_to, value, state, transaction_hash, foreign_hash, block_number
FROM settlements
WHERE network = :network AND asset || '' = :asset AND state = 'CONFIRMED' AND block_hash IS NOT NULL
    AND block_number >= :first AND block_number < :end
UNION ALL
SELECT id, network, asset, payer, nonce, pay_to, value, state, transaction_hash, foreign_hash, block_number
FROM settlements
WHERE network = :network AND asset || '' = :asset AND state = 'CONFIRMED' AND block_hash IS NULL
    AND block_number >= :first AND block_number < :end;

-- name: sales
SELECT id, network, asset, payer, nonce, pay_to, value_micro, state, failure, transaction_hash, confirmed, honoured_ms
FROM purchases WHERE network = :network AND asset = :asset;

-- name: honoured_sales
SELECT id, network, asset, payer, nonce, pay_to, value_micro, state, failure, transaction_hash, confirmed
FROM purchases WHERE network = :network AND asset = :asset AND honoured_ms IS NOT NULL;

-- name: honoured
SELECT id FROM purchases
WHERE network = :network AND asset = :asset AND payer = :payer AND nonce = :nonce AND honoured_ms IS NOT NULL;

-- name: count_settlements
SELECT network, asset, count(*) AS payments FROM settlements GROUP BY network, asset ORDER BY network, asset;

-- name: count_sales
SELECT network, asset, count(*) AS payments FROM purchases GROUP BY network, asset ORDER BY network, asset;

-- name: cursor
SELECT next_block FROM chain_cursors WHERE network = :network AND asset = :asset;

-- name: move_cursor
INSERT INTO chain_cursors (network, asset, next_block) VALUES (:network, :asset, :next_block)
ON CONFLICT (network, asset) DO UPDATE SET next_block = :next_block;
