-- What must hold of every hub's database at any moment (security 5): each statement lists what does not, as subject and
-- found. Its name begins with the invariant that it belongs to; `storage.books.invariants` says each in words.
-- `:since_ms` (0: ever) leaves out settlements that did not change since.

-- name: i1_one_settlement_per_payment
SELECT network || '/' || asset || '/' || payer || '/' || nonce AS subject, count(*) || ' settlements' AS found
FROM settlements GROUP BY network, asset, payer, nonce HAVING count(*) > 1;

-- name: i6_what_is_mined_names_its_transaction
SELECT s.id AS subject, s.state || ' in block ' || coalesce(CAST(s.block_number AS TEXT), 'none') || ', transaction '
    || s.transaction_hash AS found
FROM settlements s LEFT JOIN (
    SELECT l.settlement_id, l.attempt, r.hash FROM settlement_slots l JOIN raw_transactions r
        ON r.network = l.network AND r.signer = l.signer AND r.signer_nonce = l.signer_nonce
) r ON r.hash = s.transaction_hash AND r.settlement_id = s.id AND r.attempt = s.attempt
WHERE s.updated_ms >= :since_ms AND s.state IN ('MINED', 'CONFIRMED') AND (s.block_number IS NULL OR r.hash IS NULL);

-- name: i8_failed_has_a_proof
SELECT s.id AS subject, s.state || ', proof ' || coalesce(s.proof, 'none') || ', signed ' || coalesce(r.signed, 0) || ' times' AS found
FROM settlements s
LEFT JOIN (
    SELECT settlement_id, attempt, count(*) AS signed FROM settlement_slots GROUP BY settlement_id, attempt
) r ON r.settlement_id = s.id AND r.attempt = s.attempt
WHERE s.updated_ms >= :since_ms AND ((s.state = 'FAILED') <> (s.proof IS NOT NULL)
    OR (s.proof IS NOT NULL AND (
        s.proof NOT IN ('never_sent', 'expired', 'foreign', 'reverted', 'spent')
        OR (s.proof = 'never_sent') <> (coalesce(r.signed, 0) = 0)
        OR s.error IS NULL
    ))
    OR (s.foreign_hash IS NOT NULL AND coalesce(s.proof, '') <> 'foreign'));

-- A slot without a transaction, or an attempt in a slot of which nothing was signed.
-- name: i9_every_slot_has_its_transaction
SELECT l.network || '/' || l.signer || '/' || l.signer_nonce AS subject, 'nothing signed for ' || l.settlement_id AS found
FROM settlements s JOIN settlement_slots l ON l.settlement_id = s.id LEFT JOIN raw_transactions r
    ON r.network = l.network AND r.signer = l.signer AND r.signer_nonce = l.signer_nonce
WHERE s.updated_ms >= :since_ms AND r.hash IS NULL;

-- name: i9_nonces_below_the_lanes_next
SELECT r.network || '/' || r.signer AS subject, 'signed with ' || max(r.signer_nonce) || ', next is '
    || coalesce(CAST(max(l.next_nonce) AS TEXT), 'unknown') AS found
FROM raw_transactions r LEFT JOIN signer_lanes l ON l.network = r.network AND l.signer = r.signer
GROUP BY r.network, r.signer HAVING max(r.signer_nonce) >= coalesce(max(l.next_nonce), 0);

-- name: i9_signed_is_what_was_signed
SELECT s.id AS subject, s.state || ' without a transaction' AS found
FROM settlements s LEFT JOIN (
    SELECT l.settlement_id, l.attempt, r.hash FROM settlement_slots l JOIN raw_transactions r
        ON r.network = l.network AND r.signer = l.signer AND r.signer_nonce = l.signer_nonce
) r ON r.hash = s.transaction_hash AND r.settlement_id = s.id AND r.attempt = s.attempt
WHERE s.updated_ms >= :since_ms AND s.state IN ('SIGNED', 'BROADCAST') AND r.hash IS NULL;

-- The end of the authorization is within its JSON, so whoever reads this looks for it there.
-- name: i10_old_unfinished
SELECT id AS subject, state AS found, payment FROM settlements
WHERE state NOT IN ('CONFIRMED', 'FAILED') AND updated_ms < :before_ms ORDER BY id;

-- name: i12_the_log_is_dense
SELECT s.id AS subject, count(e.version) || ' events up to ' || coalesce(CAST(max(e.version) AS TEXT), 'none')
    || ', the row is at ' || s.version AS found
FROM settlements s LEFT JOIN settlement_events e ON e.settlement_id = s.id
WHERE s.updated_ms >= :since_ms GROUP BY s.id, s.version
HAVING count(e.version) <> s.version OR coalesce(max(e.version), 0) <> s.version;

-- name: i12_each_event_goes_on_from_the_one_before
SELECT e.settlement_id || ' event ' || e.version AS subject, 'from ' || coalesce(e.from_state, 'nothing') || ' after '
    || coalesce(b.to_state, 'nothing') AS found
FROM settlements s JOIN settlement_events e ON e.settlement_id = s.id
LEFT JOIN settlement_events b ON b.settlement_id = e.settlement_id AND b.version = e.version - 1
WHERE s.updated_ms >= :since_ms AND coalesce(e.from_state, '') <> coalesce(b.to_state, '');

-- name: i12_the_log_ends_where_the_row_is
SELECT s.id AS subject, 'the log ends at ' || e.to_state || ', the row is ' || s.state AS found
FROM settlements s JOIN settlement_events e ON e.settlement_id = s.id AND e.version = s.version
WHERE s.updated_ms >= :since_ms AND (e.to_state <> s.state OR e.attempt <> s.attempt);

-- name: i12_transitions_seen
SELECT e.from_state, e.to_state, min(e.settlement_id) AS subject
FROM settlements s JOIN settlement_events e ON e.settlement_id = s.id
WHERE s.updated_ms >= :since_ms AND e.from_state IS NOT NULL GROUP BY e.from_state, e.to_state;
