-- Where gateway and hub share a database: sales against settlements, in both directions (security I5, I7).
-- `:since_ms` (0: ever) leaves out what did not change since.

-- A trusted sale whose settlement failed is voided by the gateway's next look; `:before_ms` gives it the time.
-- name: i5_no_credits_of_a_failed_settlement
WITH looked_at AS (
    SELECT number FROM purchases WHERE updated_ms >= :since_ms
    UNION SELECT p.number FROM settlements s JOIN purchases p
        ON s.network = p.network AND s.asset = p.asset AND s.payer = p.payer AND s.nonce = p.nonce
    WHERE s.updated_ms >= :since_ms
)
SELECT p.id AS subject, p.state || ' with ' || p.remaining || ' credits, the settlement failed: ' || coalesce(s.error, '') AS found
FROM looked_at l JOIN holdings p ON p.number = l.number JOIN settlements s
    ON s.network = p.network AND s.asset = p.asset AND s.payer = p.payer AND s.nonce = p.nonce
WHERE (p.state = 'LIVE' OR (
        p.state = 'VOID' AND ((p.failure = 'gate_deleted' AND p.remaining = p.granted) OR p.failure LIKE 'gate_deleted, %')
    ))
    AND p.remaining > 0 AND s.state = 'FAILED' AND s.updated_ms < :before_ms AND p.honoured_ms IS NULL;

-- name: a_sale_has_its_settlement
SELECT p.id AS subject, p.state || ' without a settlement of ' || p.network || '/' || p.payer || '/' || p.nonce AS found
FROM purchases p LEFT JOIN settlements s
    ON s.network = p.network AND s.asset = p.asset AND s.payer = p.payer AND s.nonce = p.nonce
WHERE p.updated_ms >= :since_ms AND p.state IN ('LIVE', 'VOID') AND p.honoured_ms IS NULL AND s.id IS NULL;

-- name: a_sale_is_worth_its_settlement
SELECT p.id AS subject, 'sold for ' || p.value_micro || ', settled ' || s.value AS found
FROM purchases p JOIN settlements s
    ON s.network = p.network AND s.asset = p.asset AND s.payer = p.payer AND s.nonce = p.nonce
WHERE p.updated_ms >= :since_ms AND p.state IN ('LIVE', 'VOID') AND p.value_micro <> s.value;

-- Settled for a gateway, and the gateway sold nothing for it.
-- name: a_settlement_for_a_gateway_has_its_sale
SELECT s.id AS subject, s.state || ' for a gateway, the purchase is ' || coalesce(p.state, 'not there') AS found
FROM settlements s LEFT JOIN purchases p
    ON s.network = p.network AND s.asset = p.asset AND s.payer = p.payer AND s.nonce = p.nonce
WHERE s.updated_ms >= :since_ms AND s.state = 'CONFIRMED' AND s.purchase_data IS NOT NULL AND s.updated_ms < :before_ms
    AND coalesce(p.state, '') NOT IN ('LIVE', 'VOID');
