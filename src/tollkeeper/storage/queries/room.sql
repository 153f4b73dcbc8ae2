-- name: count_under_way
-- Through the index of those under way alone: a millisecond where they are ten thousand.
SELECT count(*) AS settlements FROM settlements
WHERE network = :network AND state IN ('CLAIMED', 'SIGNED', 'BROADCAST');

-- What a signer's transactions that may be executed yet cost, as their fees stand in them.
-- name: read_promised
SELECT CAST(coalesce(sum(r.gas_counted), 0) AS BIGINT) AS promised FROM settlements s
JOIN settlement_slots l ON l.settlement_id = s.id AND l.attempt = s.attempt
JOIN raw_transactions r ON r.network = l.network AND r.signer = l.signer AND r.signer_nonce = l.signer_nonce
WHERE s.network = :network AND s.state IN ('CLAIMED', 'SIGNED', 'BROADCAST')
    AND r.signer = :signer AND r.created_ms >= :since_ms;
