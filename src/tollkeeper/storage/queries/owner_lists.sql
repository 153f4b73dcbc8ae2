-- What owners read of all their gates at once: requests and payments. `gate_id` 0: of all gates of the owner.

-- name: requests_found
SELECT r.id, r.gate_id, r.at_ms, r.method, r.status, r.outcome, r.code, r.duration_us, r.purchase_id,
    p.slug, p.title, u.payer, u.network, u.claimed_ms, u.granted_ms, u.value_micro
FROM requests r JOIN paygates p ON p.id = r.gate_id LEFT JOIN purchases u ON u.id = r.purchase_id
WHERE r.gate_id IN (
        SELECT id FROM paygates WHERE owner_wallet = :owner_wallet AND CAST(:gate_id AS BIGINT) = 0
        UNION ALL SELECT id FROM paygates WHERE id = :gate_id
    )
    AND (:outcome = '' OR r.outcome = :outcome) AND (:payer = '' OR u.payer = :payer)
    AND r.at_ms >= :from_ms AND r.at_ms < :to_ms
ORDER BY r.at_ms DESC, r.id DESC LIMIT :limit OFFSET :offset;

-- name: count_requests_found
SELECT count(*) AS total
FROM requests r LEFT JOIN purchases u ON u.id = r.purchase_id
WHERE r.gate_id IN (
        SELECT id FROM paygates WHERE owner_wallet = :owner_wallet AND CAST(:gate_id AS BIGINT) = 0
        UNION ALL SELECT id FROM paygates WHERE id = :gate_id
    )
    AND (:outcome = '' OR r.outcome = :outcome) AND (:payer = '' OR u.payer = :payer)
    AND r.at_ms >= :from_ms AND r.at_ms < :to_ms;

-- name: request_by_id
SELECT r.id, r.gate_id, r.at_ms, r.method, r.status, r.outcome, r.code, r.duration_us, r.purchase_id,
    p.slug, p.title, u.payer, u.network, u.claimed_ms, u.granted_ms, u.value_micro
FROM requests r JOIN paygates p ON p.id = r.gate_id LEFT JOIN purchases u ON u.id = r.purchase_id
WHERE r.id = :id;

-- The newest rows of a feed: `since_ms` is a little before the last one, for another node may write a row late.
-- name: requests_since
SELECT r.id, r.gate_id, r.at_ms, r.method, r.status, r.outcome, r.code, r.duration_us, r.purchase_id,
    p.slug, p.title, u.payer, u.network, u.claimed_ms, u.granted_ms, u.value_micro
FROM requests r JOIN paygates p ON p.id = r.gate_id LEFT JOIN purchases u ON u.id = r.purchase_id
WHERE p.owner_wallet = :owner_wallet AND r.outcome <> 'challenged' AND r.at_ms >= :since_ms
ORDER BY r.at_ms DESC, r.id DESC LIMIT :limit;

-- name: payments_found
SELECT u.id, u.gate_id, u.network, u.payer, u.value_micro, u.price_micro, u.credits, u.state, u.failure,
    u.transaction_hash, u.claimed_ms, u.granted_ms, u.updated_ms, u.confirmed, u.assume_valid,
    p.slug, p.title, c.remaining, c.expires_ms
FROM purchases u JOIN paygates p ON p.id = u.gate_id LEFT JOIN credits c ON c.number = u.number
WHERE u.gate_id IN (
        SELECT id FROM paygates WHERE owner_wallet = :owner_wallet AND CAST(:gate_id AS BIGINT) = 0
        UNION ALL SELECT id FROM paygates WHERE id = :gate_id
    )
    AND u.state <> 'SHOWN' AND (:state = '' OR u.state = :state) AND (:payer = '' OR u.payer = :payer)
    AND (:held = 0 OR (u.state = 'LIVE' AND c.remaining > 0))
    AND u.claimed_ms >= :from_ms AND u.claimed_ms < :to_ms
ORDER BY u.claimed_ms DESC, u.number DESC LIMIT :limit OFFSET :offset;

-- name: count_payments_found
SELECT count(*) AS total
FROM purchases u LEFT JOIN credits c ON c.number = u.number
WHERE u.gate_id IN (
        SELECT id FROM paygates WHERE owner_wallet = :owner_wallet AND CAST(:gate_id AS BIGINT) = 0
        UNION ALL SELECT id FROM paygates WHERE id = :gate_id
    )
    AND u.state <> 'SHOWN' AND (:state = '' OR u.state = :state) AND (:payer = '' OR u.payer = :payer)
    AND (:held = 0 OR (u.state = 'LIVE' AND c.remaining > 0))
    AND u.claimed_ms >= :from_ms AND u.claimed_ms < :to_ms;

-- name: payment_by_id
SELECT u.id, u.gate_id, u.network, u.payer, u.value_micro, u.price_micro, u.credits, u.state, u.failure,
    u.transaction_hash, u.claimed_ms, u.granted_ms, u.updated_ms, u.confirmed, u.assume_valid,
    p.slug, p.title, c.remaining, c.expires_ms
FROM purchases u JOIN paygates p ON p.id = u.gate_id LEFT JOIN credits c ON c.number = u.number
WHERE u.id = :id AND u.state <> 'SHOWN';

-- name: gate_of
SELECT id, owner_wallet FROM paygates WHERE id = :gate_id;

-- name: revenue_by_gate
SELECT u.gate_id, p.slug, p.title, u.network, granted_ms / :size_ms * :size_ms AS start_ms,
    CAST(sum(CAST(value_micro AS BIGINT) / 1000000000) AS BIGINT) AS revenue_high,
    CAST(sum(CAST(value_micro AS BIGINT) % 1000000000) AS BIGINT) AS revenue_low
FROM purchases u JOIN paygates p ON p.id = u.gate_id
WHERE p.owner_wallet = :owner_wallet AND granted_ms >= :from_ms AND granted_ms < :to_ms
    AND (u.state <> 'VOID' OR u.failure LIKE 'gate_deleted%')
GROUP BY u.gate_id, p.slug, p.title, u.network, granted_ms / :size_ms;

-- name: failures_by_gate
SELECT r.gate_id, p.slug, p.title, r.code, count(*) AS requests
FROM requests r JOIN paygates p ON p.id = r.gate_id
WHERE p.owner_wallet = :owner_wallet AND p.deleted_ms IS NULL AND r.at_ms >= :from_ms
    AND r.outcome IN ('failed', 'targetError')
GROUP BY r.gate_id, p.slug, p.title, r.code ORDER BY count(*) DESC LIMIT 10;

-- name: payments_parked
SELECT u.id, u.network, u.nonce, u.transaction_hash, u.failure, u.claimed_ms, p.slug
FROM purchases u JOIN paygates p ON p.id = u.gate_id
WHERE u.state = 'PARKED' ORDER BY u.claimed_ms LIMIT 50;

-- name: payments_waiting
SELECT u.id, u.gate_id, p.slug, p.title, u.state, u.claimed_ms
FROM purchases u JOIN paygates p ON p.id = u.gate_id
WHERE p.owner_wallet = :owner_wallet AND u.state IN ('CLAIMED', 'PARKED') AND u.claimed_ms < :before_ms
ORDER BY u.claimed_ms LIMIT 10;
