-- name: count_under_way
-- Through the index of those under way alone: a millisecond where they are ten thousand.
SELECT count(*) AS settlements FROM settlements
WHERE network = :network AND state IN ('CLAIMED', 'SIGNED', 'BROADCAST');

-- What a signer's transactions that may be executed yet cost, as they count in their hour: one for each of its numbers,
-- also where several settlements share it, or it was replaced. CROSS JOIN says in which order to look: from what is under
-- way, which is bounded, and not from all that the signer ever signed.
-- name: read_promised
WITH nonces AS (
    SELECT DISTINCT l.signer_nonce FROM settlements s CROSS JOIN settlement_slots l
    WHERE s.network = :network AND s.state IN ('CLAIMED', 'SIGNED', 'BROADCAST')
        AND l.settlement_id = s.id AND l.attempt = s.attempt AND l.network = :network AND l.signer = :signer
), counted AS (
    SELECT max(r.gas_counted) AS gas FROM nonces CROSS JOIN raw_transactions r
    WHERE r.network = :network AND r.signer = :signer AND r.signer_nonce = nonces.signer_nonce
        AND r.created_ms >= :since_ms
    GROUP BY r.signer_nonce
)
SELECT CAST(coalesce(sum(gas), 0) AS BIGINT) AS promised FROM counted;
