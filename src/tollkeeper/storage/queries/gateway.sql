-- PayGates ------------------------------------------------------------------------------------------------------

-- name: insert_paygate
INSERT INTO paygates (
    id, slug, version, owner_wallet, management_hash, target_url, price_micro, credits, methods, title, description,
    assume_valid, require_auth, network, payment_address, mime_type, is_enabled, file_id, header_auth_mode,
    credit_binding, on_failure, credits_expire_after_seconds, accepts, allow_subpaths,
    target_headers, stream, payer_proof, created_ms, updated_ms
) VALUES (
    :id, :slug, 1, :owner_wallet, :management_hash, :target_url, :price_micro, :credits, :methods, :title,
    :description, :assume_valid, :require_auth, :network, :payment_address, :mime_type, :is_enabled, :file_id,
    :header_auth_mode, :credit_binding, :on_failure, :credits_expire_after_seconds, :accepts, :allow_subpaths,
    :target_headers, :stream, :payer_proof, :now_ms, :now_ms
)
ON CONFLICT (slug) DO NOTHING
RETURNING id;

-- name: insert_version
INSERT INTO paygate_versions (gate_id, version, price_micro, credits, network, pay_to, accepts, created_ms)
VALUES (:gate_id, :version, :price_micro, :credits, :network, :pay_to, :accepts, :now_ms);

-- name: former_versions
SELECT v.version, v.price_micro, v.credits, v.network, v.pay_to, v.accepts, later.created_ms AS replaced_ms
FROM paygate_versions v JOIN paygate_versions later ON later.gate_id = v.gate_id AND later.version = v.version + 1
WHERE v.gate_id = :gate_id AND v.version < :version AND later.created_ms > :since_ms
ORDER BY v.version DESC LIMIT :limit;

-- name: insert_counters
INSERT INTO paygate_counters (gate_id, challenges, purchases, calls, failures, revenue_micro)
VALUES (:gate_id, 0, 0, 0, 0, 0);

-- name: paygate_by_slug
SELECT p.*, f.name AS file_name, f.size_bytes AS file_size_bytes, f.content_type AS file_content_type,
    f.sha256 AS file_sha256
FROM paygates p LEFT JOIN files f ON f.id = p.file_id
WHERE p.slug = :slug AND p.deleted_ms IS NULL;

-- name: deleted_paygate_by_slug
SELECT p.*, f.name AS file_name, f.size_bytes AS file_size_bytes, f.content_type AS file_content_type,
    f.sha256 AS file_sha256
FROM paygates p LEFT JOIN files f ON f.id = p.file_id
WHERE p.slug = :slug AND p.deleted_ms IS NOT NULL;

-- name: paygate_by_id
SELECT p.*, f.name AS file_name, f.size_bytes AS file_size_bytes, f.content_type AS file_content_type,
    f.sha256 AS file_sha256
FROM paygates p LEFT JOIN files f ON f.id = p.file_id
WHERE p.id = :id AND p.deleted_ms IS NULL;

-- name: paygates_of_owner
SELECT p.*, f.name AS file_name, f.size_bytes AS file_size_bytes, f.content_type AS file_content_type,
    f.sha256 AS file_sha256
FROM paygates p LEFT JOIN files f ON f.id = p.file_id
WHERE p.owner_wallet = :owner_wallet AND p.deleted_ms IS NULL AND p.id <= (
    SELECT id FROM paygates WHERE owner_wallet = :owner_wallet AND deleted_ms IS NULL
    ORDER BY id DESC LIMIT 1 OFFSET :offset
)
ORDER BY p.id DESC LIMIT :limit;

-- name: count_paygates_of_owner
SELECT count(*) AS total FROM paygates WHERE owner_wallet = :owner_wallet AND deleted_ms IS NULL;

-- `enabled`: 1 or 0, or -1 for all. `pattern`: of LIKE, in small letters.
-- name: found_paygates_of_owner
SELECT p.*, f.name AS file_name, f.size_bytes AS file_size_bytes, f.content_type AS file_content_type,
    f.sha256 AS file_sha256
FROM paygates p LEFT JOIN files f ON f.id = p.file_id
WHERE p.owner_wallet = :owner_wallet AND p.deleted_ms IS NULL AND (:enabled = -1 OR p.is_enabled = :enabled)
    AND (lower(p.title) LIKE :pattern ESCAPE '!' OR lower(p.slug) LIKE :pattern ESCAPE '!')
ORDER BY p.id DESC LIMIT :limit OFFSET :offset;

-- name: count_found_paygates_of_owner
SELECT count(*) AS total FROM paygates p
WHERE p.owner_wallet = :owner_wallet AND p.deleted_ms IS NULL AND (:enabled = -1 OR p.is_enabled = :enabled)
    AND (lower(p.title) LIKE :pattern ESCAPE '!' OR lower(p.slug) LIKE :pattern ESCAPE '!');

-- name: ownerless_paygates
SELECT p.*, f.name AS file_name, f.size_bytes AS file_size_bytes, f.content_type AS file_content_type,
    f.sha256 AS file_sha256
FROM paygates p LEFT JOIN files f ON f.id = p.file_id
WHERE p.owner_wallet IS NULL AND p.management_hash IS NULL AND p.deleted_ms IS NULL AND p.id <= (
    SELECT id FROM paygates WHERE owner_wallet IS NULL AND management_hash IS NULL AND deleted_ms IS NULL
    ORDER BY id DESC LIMIT 1 OFFSET :offset
)
ORDER BY p.id DESC LIMIT :limit;

-- name: count_ownerless_paygates
SELECT count(*) AS total FROM paygates
WHERE owner_wallet IS NULL AND management_hash IS NULL AND deleted_ms IS NULL;

-- name: management_hash_known
SELECT id FROM paygates WHERE management_hash = :management_hash LIMIT 1;

-- name: update_paygate
UPDATE paygates SET
    version = :version, target_url = :target_url, price_micro = :price_micro, credits = :credits, methods = :methods,
    title = :title, description = :description, assume_valid = :assume_valid, require_auth = :require_auth,
    network = :network, payment_address = :payment_address, mime_type = :mime_type, is_enabled = :is_enabled,
    file_id = :file_id, header_auth_mode = :header_auth_mode, credit_binding = :credit_binding,
    on_failure = :on_failure,
    credits_expire_after_seconds = :credits_expire_after_seconds, accepts = :accepts,
    allow_subpaths = :allow_subpaths, target_headers = :target_headers, stream = :stream, payer_proof = :payer_proof, updated_ms = :now_ms
WHERE id = :id AND version = :from_version AND deleted_ms IS NULL
RETURNING id;

-- name: claim_paygate
UPDATE paygates SET owner_wallet = :owner_wallet, management_hash = NULL, version = version + 1, updated_ms = :now_ms
WHERE id = :id AND owner_wallet IS NULL AND deleted_ms IS NULL
RETURNING version;

-- name: delete_paygate
UPDATE paygates SET deleted_ms = :now_ms, updated_ms = :now_ms, version = version + 1
WHERE id = :id AND deleted_ms IS NULL
RETURNING id;

-- Their payments are followed all the same: what was earned, and whom to trust, hangs on how they end.
-- name: void_purchases_of_gate
-- So many of a deleted gate's, with what each has left. Of one that was held before (`hold_purchase`) nothing is due.
UPDATE purchases SET state = 'VOID', updated_ms = :now_ms,
    failure = CASE WHEN failure IS NULL THEN 'gate_deleted' ELSE 'gate_deleted, ' || failure END
WHERE number IN (SELECT number FROM purchases WHERE gate_id = :gate_id AND state = 'LIVE' ORDER BY number LIMIT :many)
    AND state = 'LIVE'
RETURNING number, (
    SELECT c.remaining FROM credits c
    WHERE c.number = purchases.number AND (c.expires_ms IS NULL OR c.expires_ms > :now_ms)
) AS outstanding;

-- name: close_credits_of_gate
-- Of those, which lie between these numbers.
UPDATE credits SET is_live = 0
WHERE is_live = 1 AND number IN (
    SELECT number FROM purchases
    WHERE gate_id = :gate_id AND state = 'VOID' AND number >= :first AND number <= :last
);

-- name: gates_to_void
-- That were deleted, and of which not all is void yet: from which sale on.
SELECT g.id, p.number AS first FROM paygates g JOIN purchases p ON p.number = (
    SELECT number FROM purchases WHERE gate_id = g.id AND state = 'LIVE' ORDER BY number LIMIT 1
) WHERE g.deleted_ms IS NOT NULL;

-- name: counters_of_gate
SELECT challenges, purchases, calls, failures, revenue_high, revenue_micro FROM paygate_counters WHERE gate_id = :gate_id;

-- Sums of values are summed in two parts, billions and the rest: one of ten values may be larger than any integer.

-- What a gate sold on trust and is not confirmed yet; what of all that it sold proved unpaid after all.
-- name: trust_of_gate
SELECT 'LIVE' AS state, count(*) AS purchases, coalesce(CAST(sum(CAST(value_micro AS BIGINT) / 1000000000) AS BIGINT), 0) AS value_high,
    coalesce(CAST(sum(CAST(value_micro AS BIGINT) % 1000000000) AS BIGINT), 0) AS value_low
FROM purchases WHERE assume_valid = 1 AND confirmed = 0 AND state = 'LIVE' AND gate_id = :gate_id
UNION ALL SELECT 'VOID', count(*), coalesce(CAST(sum(CAST(value_micro AS BIGINT) / 1000000000) AS BIGINT), 0),
    coalesce(CAST(sum(CAST(value_micro AS BIGINT) % 1000000000) AS BIGINT), 0)
FROM purchases WHERE gate_id = :gate_id AND state = 'VOID' AND failure = 'settlement_failed';

-- name: count_purchase
-- Its revenue is carried over into the part of 10^18, as by `add_revenue`, so that no sum is larger than an integer.
UPDATE paygate_counters SET purchases = purchases + 1,
    revenue_high = revenue_high + (revenue_micro + :revenue_micro) / 1000000000000000000,
    revenue_micro = (revenue_micro + :revenue_micro) % 1000000000000000000
WHERE gate_id = :gate_id
RETURNING (SELECT g.deleted_ms FROM paygates g WHERE g.id = :gate_id) AS gate_deleted_ms;

-- name: secrets_of_gate
SELECT key_id, secret, replaced_ms FROM paygate_secrets
WHERE gate_id = :gate_id AND (replaced_ms IS NULL OR replaced_ms > :since_ms)
ORDER BY replaced_ms IS NOT NULL, replaced_ms DESC, key_id;

-- name: insert_secret
INSERT INTO paygate_secrets (key_id, gate_id, secret, created_ms) VALUES (:key_id, :gate_id, :secret, :now_ms);

-- name: replace_secret
UPDATE paygate_secrets SET replaced_ms = :now_ms WHERE gate_id = :gate_id AND replaced_ms IS NULL;

-- name: forget_secrets
DELETE FROM paygate_secrets WHERE gate_id = :gate_id AND replaced_ms <= :since_ms;

-- Purchases -----------------------------------------------------------------------------------------------------

-- name: gate_standing
SELECT version, is_enabled, deleted_ms FROM paygates WHERE id = :gate_id;

-- name: purchase_by_payment
SELECT * FROM holdings WHERE network = :network AND asset = :asset AND payer = :payer AND nonce = :nonce;

-- name: purchase_by_id
SELECT * FROM holdings WHERE id = :id;

-- name: claim_payment
-- Nothing where the payment is known, or its gate is no longer as it was; what is paid already a disabled gate takes, too.
INSERT INTO purchases (
    id, network, asset, payer, nonce, gate_id, gate_version, price_micro, credits, pay_to, value_micro,
    valid_before_seconds, header_hash, assume_valid, credits_expire_after_seconds, request, state, attempt, claimed_ms,
    attempt_ms, updated_ms
) SELECT
    :id, :network, :asset, :payer, :nonce, id, version, :price_micro, :credits, :pay_to, :value_micro,
    :valid_before_seconds, :header_hash, :assume_valid, :credits_expire_after_seconds, :request, 'CLAIMED', 1, :now_ms,
    :now_ms, :now_ms
FROM paygates
WHERE id = :gate_id AND version = :gate_version AND deleted_ms IS NULL AND (is_enabled = 1 OR :is_paid = 1)
ON CONFLICT DO NOTHING
RETURNING *;

-- name: claim_again
-- As `claim_payment`. What a transaction has shown to everybody stays so, whatever becomes of this attempt.
UPDATE purchases SET
    state = 'CLAIMED', shown_in = coalesce(transaction_hash, shown_in), attempt = CAST(:next_attempt AS BIGINT),
    gate_version = :gate_version, price_micro = :price_micro, credits = :credits, pay_to = :pay_to,
    header_hash = :header_hash, assume_valid = :assume_valid, failure = NULL, value_micro = :value_micro,
    valid_before_seconds = :valid_before_seconds, credits_expire_after_seconds = :credits_expire_after_seconds,
    request = :request, transaction_hash = NULL, paid_ms = NULL, follow_ms = NULL, untold_ms = NULL,
    attempt_ms = :now_ms, updated_ms = :now_ms
WHERE id = :id AND state = 'FAILED' AND CAST(:next_attempt AS BIGINT) <= :attempts_max
    AND CAST(:next_attempt AS BIGINT) = CASE WHEN failure = 'hub_refused_our_signature' THEN attempt ELSE attempt + 1 END
    AND EXISTS (
        SELECT 1 FROM paygates g
        WHERE g.id = purchases.gate_id AND g.version = :gate_version AND g.is_enabled = 1 AND g.deleted_ms IS NULL
    )
RETURNING *;

-- name: grant_credits
-- Of a sale on trust the request says who was asked, until its payment is decided.
UPDATE purchases SET
    state = 'LIVE', transaction_hash = :transaction_hash, confirmed = :confirmed,
    request = CASE WHEN CAST(:confirmed AS BIGINT) = 0 THEN request END,
    granted_ms = :now_ms, paid_ms = :now_ms, follow_ms = :follow_ms, updated_ms = :now_ms
WHERE id = :id AND attempt = :attempt AND state = 'CLAIMED'
RETURNING number, credits, credits_expire_after_seconds, gate_id, value_micro;

-- name: open_credits
-- Of a purchase that was granted in this transaction; those that are spent in it, too, are gone already.
INSERT INTO credits (number, granted, remaining, token_used, is_live, expires_ms)
VALUES (:number, :granted, :remaining, :token_used, 1, :expires_ms);

-- name: spend_first
-- The first credit of a claim that was granted behind its claimer's back, who comes only now. Its gate may have been
-- deleted meanwhile: then what is left stays closed, or will be, and none of it was spent before.
UPDATE credits SET remaining = remaining - 1, token_used = CASE WHEN :token_used = 1 THEN 1 ELSE token_used END
WHERE remaining > 0 AND number IN (
    SELECT p.number FROM purchases p
    WHERE p.id = :id AND p.attempt = :attempt AND (
        (p.state = 'LIVE' AND p.failure IS NULL) OR (p.state = 'VOID' AND p.failure = 'gate_deleted')
    )
) AND (expires_ms IS NULL OR expires_ms > :now_ms) AND (remaining = granted OR (is_live = 1 AND EXISTS (
    SELECT 1 FROM purchases p JOIN paygates g ON g.id = p.gate_id WHERE p.id = :id AND g.deleted_ms IS NULL
)))
RETURNING number;

-- name: spend_due
-- The one call of a purchase whose gate was deleted before any of its calls was answered; what is left stays closed.
UPDATE credits SET remaining = remaining - 1, token_used = CASE WHEN :token_used = 1 THEN 1 ELSE token_used END
WHERE number = :number AND remaining > 0 AND remaining = granted AND (expires_ms IS NULL OR expires_ms > :now_ms)
    AND EXISTS (SELECT 1 FROM purchases p WHERE p.number = :number AND p.state = 'VOID' AND p.failure = 'gate_deleted')
RETURNING number;

-- name: insert_call
-- That spent a credit of a purchase in this transaction.
INSERT INTO single_calls (id, purchase_id, state, created_ms) VALUES (:id, :purchase_id, 'DISPATCHED', :now_ms);

-- An operator found the payment on the chain. Its header is public then, so only the credit token counts.
-- name: honour_failed
UPDATE purchases SET
    state = 'LIVE', transaction_hash = :transaction_hash, failure = NULL, confirmed = 1, request = NULL,
    granted_ms = :now_ms, honoured_ms = :now_ms, follow_ms = NULL, updated_ms = :now_ms
WHERE id = :id AND attempt = :attempt AND state = 'FAILED'
RETURNING number, credits, credits_expire_after_seconds, gate_id, value_micro;

-- name: honour_parked
UPDATE purchases SET
    state = 'LIVE', transaction_hash = :transaction_hash, failure = NULL, confirmed = 1, request = NULL,
    granted_ms = :now_ms, honoured_ms = :now_ms, updated_ms = :now_ms
WHERE id = :id AND attempt = :attempt AND state = 'PARKED'
RETURNING number, credits, credits_expire_after_seconds, gate_id, value_micro;

-- It spent a held credit, and somebody settled it all the same.
-- name: honour_shown
UPDATE purchases SET
    state = 'LIVE', transaction_hash = :transaction_hash, confirmed = 1, granted_ms = :now_ms, honoured_ms = :now_ms,
    updated_ms = :now_ms, kept_until = NULL
WHERE id = :id AND attempt = :attempt AND state = 'SHOWN'
RETURNING number, credits, credits_expire_after_seconds, gate_id, value_micro;

-- Sold, and its payment failed; then somebody carried it out after all.
-- name: honour_void
UPDATE purchases SET
    state = 'LIVE', transaction_hash = :transaction_hash, failure = NULL, confirmed = 1, honoured_ms = :now_ms,
    follow_ms = NULL, updated_ms = :now_ms
WHERE id = :id AND attempt = :attempt AND state = 'VOID' AND failure = 'settlement_failed'
RETURNING gate_id, value_micro;

-- name: reopen_void_credits
-- Of a sale that is about to be LIVE again, whose row says until then since when it is void (`updated_ms`; a clock may have
-- been put back): what was left of its credits' time then is left of it now.
UPDATE credits SET is_live = 1, token_used = CASE WHEN :token_used = 1 THEN 1 ELSE token_used END,
    expires_ms = expires_ms + (
        SELECT CASE WHEN p.updated_ms < :now_ms THEN :now_ms - p.updated_ms ELSE 0 END
        FROM purchases p WHERE p.number = credits.number
    )
WHERE number = (SELECT number FROM purchases WHERE id = :id AND state = 'VOID' AND failure = 'settlement_failed');

-- Of a payment that was never claimed: claimed and granted in the same commit.
-- name: mark_honoured
UPDATE purchases SET honoured_ms = :now_ms WHERE id = :id;

-- What failed by a transaction, or by clocks, may be made after all: its request is kept for as long as that is looked
-- at. Of one that was open again before (`paid_ms`) it is looked at anew where the payment failed again, and not only
-- this attempt at it.
-- name: fail_purchase
UPDATE purchases SET
    state = 'FAILED', failure = :failure, transaction_hash = :transaction_hash, updated_ms = :now_ms,
    request = CASE
        WHEN (paid_ms IS NULL OR :is_followed_anew = 1) AND CAST(:follow_ms AS BIGINT) IS NOT NULL THEN request
    END,
    follow_ms = CASE WHEN paid_ms IS NULL OR :is_followed_anew = 1 THEN CAST(:follow_ms AS BIGINT) END,
    paid_ms = :now_ms
WHERE id = :id AND attempt = :attempt AND state = 'CLAIMED'
RETURNING id;

-- The payment of an attempt that had failed was made after all: it is open again. Whose it was made for is asked then.
-- name: reopen_failed
UPDATE purchases SET
    state = 'CLAIMED', shown_in = coalesce(transaction_hash, shown_in), failure = NULL, transaction_hash = NULL,
    paid_ms = :now_ms, follow_ms = NULL, untold_ms = NULL, updated_ms = :now_ms
WHERE id = :id AND attempt = :attempt AND state = 'FAILED' AND request IS NOT NULL
RETURNING id;

-- name: shown_in
SELECT coalesce(transaction_hash, shown_in) AS transaction_hash FROM purchases WHERE id = :id;

-- name: untold_claim
SELECT untold_ms FROM purchases WHERE id = :id AND attempt = :attempt AND untold_ms <= :now_ms;

-- The clock may have been put back since it was kept.
-- name: mark_untold
UPDATE purchases SET untold_ms = :now_ms WHERE id = :id AND attempt = :attempt AND state = 'CLAIMED';

-- name: name_claim
UPDATE purchases SET transaction_hash = :transaction_hash WHERE id = :id AND attempt = :attempt AND state = 'CLAIMED';

-- name: park_purchase
UPDATE purchases SET state = 'PARKED', failure = :failure, updated_ms = :now_ms
WHERE id = :id AND attempt = :attempt AND state = 'CLAIMED'
RETURNING id;

-- name: confirm_purchase
UPDATE purchases SET confirmed = 1, transaction_hash = coalesce(NULLIF(:transaction_hash, ''), transaction_hash),
    request = NULL, paid_ms = :now_ms, follow_ms = :follow_ms, updated_ms = :now_ms
WHERE id = :id AND confirmed = 0
RETURNING id;

-- Its payment failed after it was sold for, whether or not its gate was deleted in the meantime.
-- name: void_unpaid
UPDATE purchases SET state = 'VOID', confirmed = 1, failure = 'settlement_failed', request = NULL, paid_ms = :now_ms,
    follow_ms = :follow_ms, updated_ms = :now_ms
WHERE id = :id AND ((state = 'VOID' AND failure LIKE 'gate_deleted%') OR state = 'LIVE')
RETURNING number, gate_id, value_micro;

-- One of a gate that was deleted before it was granted, as `void_purchases_of_gate`.
-- name: void_with_gate
UPDATE purchases SET state = 'VOID', updated_ms = :now_ms,
    failure = CASE WHEN failure IS NULL THEN 'gate_deleted' ELSE 'gate_deleted, ' || failure END
WHERE id = :id AND state = 'LIVE'
RETURNING number;

-- The payment of a sale that is void for its failure was made after all.
-- name: revive_purchase
UPDATE purchases SET state = 'LIVE', failure = NULL, transaction_hash = :transaction_hash, paid_ms = :now_ms,
    follow_ms = :follow_ms, updated_ms = :now_ms
WHERE id = :id AND state = 'VOID' AND failure = 'settlement_failed'
RETURNING gate_id, value_micro;

-- A sale that breaks an invariant keeps its state; `failure` says which, and its credits are closed. What became of its
-- payment is looked at once more. Of one whose gate was deleted nothing is due meanwhile.
-- name: hold_purchase
UPDATE purchases SET
    failure = CASE WHEN state = 'VOID' THEN 'gate_deleted, ' || CAST(:failure AS TEXT) ELSE CAST(:failure AS TEXT) END,
    updated_ms = :now_ms, follow_ms = CASE WHEN honoured_ms IS NULL THEN CAST(:now_ms AS BIGINT) END
WHERE id = :id AND ((state = 'LIVE' AND failure IS NULL) OR (state = 'VOID' AND failure = 'gate_deleted'))
RETURNING number;

-- What must never be taken: of a sale that is not LIVE, or is held.
-- name: close_stray_credits
UPDATE credits SET is_live = 0
WHERE is_live = 1 AND number = (SELECT number FROM purchases WHERE id = :id AND (state <> 'LIVE' OR failure IS NOT NULL));

-- name: release_purchase
UPDATE purchases SET failure = CASE WHEN state = 'VOID' THEN 'gate_deleted' END, updated_ms = :now_ms
WHERE id = :id AND ((state = 'LIVE' AND failure IS NOT NULL) OR (state = 'VOID' AND failure LIKE 'gate_deleted, %'))
RETURNING number, state;

-- name: reopen_credits
UPDATE credits SET is_live = 1 WHERE number = :number;

-- name: held_purchases
SELECT id FROM purchases WHERE state = 'LIVE' AND failure IS NOT NULL
UNION ALL SELECT id FROM purchases WHERE state = 'VOID' AND failure LIKE 'gate_deleted, %' ORDER BY id;

-- name: close_credits
UPDATE credits SET is_live = 0 WHERE number = :number;

-- name: give_credits
INSERT INTO credits_given (cause, reason, purchase_id, delta, created_ms)
VALUES (:cause, :reason, :purchase_id, :delta, :now_ms);

-- name: purchase_of_call
SELECT p.* FROM single_calls c JOIN holdings p ON p.id = c.purchase_id WHERE c.id = :id;

-- name: interrupt_calls
-- Of the program with this mark, which is in its ids; of every one where it is empty.
UPDATE single_calls SET state = 'INTERRUPTED', ended_ms = :now_ms
WHERE state = 'DISPATCHED' AND (:mark = '' OR substr(id, 13, 8) = :mark) RETURNING id;

-- name: claims_in_flight
SELECT * FROM holdings WHERE state = 'CLAIMED' ORDER BY attempt_ms LIMIT :limit;

-- name: unconfirmed_purchases
SELECT * FROM holdings WHERE assume_valid = 1 AND confirmed = 0 AND state IN ('LIVE', 'VOID')
ORDER BY granted_ms LIMIT :limit;

-- Confirmed sales, void or not, and claims that failed by a transaction or by clocks, whose payment is due to be looked at
-- again. No other purchase is ever due.
-- name: followed_purchases
SELECT * FROM holdings WHERE follow_ms <= :now_ms AND (confirmed = 1 OR state = 'FAILED')
ORDER BY follow_ms LIMIT :limit;

-- What was set before the clock was put back: a look that is later than any is, or at what was paid only to come.
-- name: correct_followed
UPDATE purchases SET follow_ms = :now_ms
WHERE follow_ms > :now_ms AND (paid_ms > :now_ms + 1000 OR follow_ms > :now_ms + :longest_ms);

-- name: follow_purchase
UPDATE purchases SET transaction_hash = NULLIF(:transaction_hash, ''), paid_ms = :paid_ms, follow_ms = :follow_ms,
    request = CASE WHEN CAST(:follow_ms AS BIGINT) IS NULL THEN NULL ELSE request END,
    forgotten_ms = CASE WHEN :is_told = 1 THEN NULL ELSE forgotten_ms END
WHERE id = :id AND attempt = :attempt AND state = :state;

-- name: rename_credits
-- Of a sale that is about to name this transaction, where it named another one.
UPDATE credits SET is_renamed = 1 WHERE is_renamed = 0 AND number = (
    SELECT number FROM purchases WHERE id = :id AND lower(coalesce(transaction_hash, '')) <> lower(:transaction_hash)
);

-- name: mark_forgotten
UPDATE purchases SET forgotten_ms = :now_ms WHERE id = :id AND forgotten_ms IS NULL
RETURNING id;

-- name: forgotten_sales
SELECT id, state, network, payer, nonce, transaction_hash FROM purchases
WHERE forgotten_ms > :since_ms AND coalesce(failure, '') <> 'settlement_failed' ORDER BY forgotten_ms;

-- name: parked_claims
SELECT id, failure, network, payer, nonce FROM purchases WHERE state = 'PARKED' AND updated_ms > :since_ms ORDER BY id;

-- What may be unpaid, and what was not paid after all, of late: few rows, by an index of their own (hence no bare columns).
-- name: exposure_of_payer
SELECT count(*) AS purchases, coalesce(CAST(sum(CAST(value_micro AS BIGINT) / 1000000000) AS BIGINT), 0) AS value_high,
    coalesce(CAST(sum(CAST(value_micro AS BIGINT) % 1000000000) AS BIGINT), 0) AS value_low FROM (
    SELECT value_micro FROM purchases
    WHERE assume_valid = 1 AND confirmed = 0 AND state IN ('CLAIMED', 'LIVE', 'VOID') AND payer = :payer
    UNION ALL SELECT value_micro FROM purchases
    WHERE failure = 'settlement_failed' AND updated_ms > :after_ms
        AND state || '' = 'VOID' AND assume_valid + 0 = 1 AND payer || '' = :payer
) AS owed;

-- name: exposure_of_gate
SELECT count(*) AS purchases, coalesce(CAST(sum(CAST(value_micro AS BIGINT) / 1000000000) AS BIGINT), 0) AS value_high,
    coalesce(CAST(sum(CAST(value_micro AS BIGINT) % 1000000000) AS BIGINT), 0) AS value_low FROM (
    SELECT value_micro FROM purchases
    WHERE assume_valid = 1 AND confirmed = 0 AND state IN ('CLAIMED', 'LIVE', 'VOID') AND gate_id = :gate_id
    UNION ALL SELECT value_micro FROM purchases
    WHERE failure = 'settlement_failed' AND updated_ms > :after_ms
        AND state || '' = 'VOID' AND assume_valid + 0 = 1 AND gate_id + 0 = :gate_id
) AS owed;

-- name: add_revenue
-- What is taken from it is less than 10^18, too.
UPDATE paygate_counters SET
    revenue_high = revenue_high + (revenue_micro + :revenue_micro + 1000000000000000000) / 1000000000000000000 - 1,
    revenue_micro = (revenue_micro + :revenue_micro + 1000000000000000000) % 1000000000000000000
WHERE gate_id = :gate_id;

-- name: purchases_of_payer
SELECT p.*, g.slug AS slug FROM (
    SELECT number FROM purchases WHERE payer = :payer AND state IN ('LIVE', 'CLAIMED')
    ORDER BY number DESC LIMIT :limit OFFSET :offset
) AS page CROSS JOIN holdings p JOIN paygates g ON g.id = p.gate_id
WHERE p.number = page.number ORDER BY p.number DESC;

-- name: count_purchases_of_payer
SELECT count(*) AS total FROM purchases WHERE payer = :payer AND state IN ('LIVE', 'CLAIMED');

-- name: oldest_of_payer
-- What a wallet's next call at a gate is spent from: the oldest purchase that holds a credit, or is due one though its gate
-- was deleted (and is yet to be void with it), else one still settling, else one that is held, or was parked since then: that may be paid for. What is used up, which may be all that a wallet bought in years, is left out by the index.
SELECT id, state FROM holdings
WHERE payer = :payer AND gate_id = :gate_id AND is_used_up = 0 AND (
    state = 'CLAIMED' OR (state = 'PARKED' AND updated_ms > :parked_since_ms) OR (
        (
            (state = 'LIVE' AND NOT EXISTS (SELECT 1 FROM paygates g WHERE g.id = :gate_id AND g.deleted_ms IS NOT NULL))
            OR ((state = 'LIVE' OR (state = 'VOID' AND failure = 'gate_deleted')) AND remaining = granted)
        )
        AND remaining > 0 AND (expires_ms IS NULL OR expires_ms > :now_ms)
    )
)
ORDER BY state = 'PARKED', state = 'LIVE' AND failure IS NOT NULL, state = 'CLAIMED', granted_ms, id LIMIT 1;

-- name: held_of_payer
-- The oldest purchase of a wallet, on this network, that holds a credit at a gate.
SELECT id FROM holdings
WHERE payer = :payer AND gate_id = :gate_id AND is_used_up = 0 AND network = :network AND state = 'LIVE'
    AND failure IS NULL AND remaining > 0 AND (expires_ms IS NULL OR expires_ms > :now_ms)
ORDER BY granted_ms, id LIMIT 1;

-- name: claims_of_payer
-- What a wallet has begun to buy at a gate, on this network, since then.
SELECT * FROM holdings
WHERE payer = :payer AND gate_id = :gate_id AND is_used_up = 0 AND network = :network AND state = 'CLAIMED'
    AND attempt_ms > :since_ms
ORDER BY attempt_ms, id;

-- name: show_payment
-- Nothing where the payment is known. No header is shown by a hash of nothing.
INSERT INTO purchases (
    id, network, asset, payer, nonce, gate_id, gate_version, price_micro, credits, pay_to, value_micro,
    valid_before_seconds, header_hash, assume_valid, credits_expire_after_seconds, state, attempt, claimed_ms, attempt_ms,
    updated_ms, kept_until
) VALUES (
    :id, :network, :asset, :payer, :nonce, :gate_id, :gate_version, :price_micro, :credits, :pay_to, :value_micro,
    :valid_before_seconds, :header_hash, 0, :credits_expire_after_seconds, 'SHOWN', 1, :now_ms, :now_ms,
    :now_ms, :kept_until
)
ON CONFLICT (network, asset, payer, nonce) DO NOTHING
RETURNING number;

-- name: take_shown_back
DELETE FROM purchases WHERE number = :number;

-- name: forget_shown
-- What its chain can use no more, some at a time.
DELETE FROM purchases WHERE number IN (
    SELECT number FROM purchases WHERE state = 'SHOWN' AND network = :network AND kept_until < :moment LIMIT 10
);

-- name: unpaid_of_payer
-- Void because their payment failed, which is still looked at. Found among the few of the payer's that failed so.
SELECT * FROM holdings
WHERE failure = 'settlement_failed' AND payer = :payer AND gate_id + 0 = :gate_id
    AND state || '' = 'VOID' AND follow_ms + 0 > 0
ORDER BY granted_ms DESC, id DESC LIMIT :limit;

-- name: restore_call
-- What is void has the credit as it has the others, closed: for its payment, unless that turns out to have been made; with
-- its gate, of which one call is due once all that was granted is left (`spend_due`).
UPDATE single_calls SET state = 'RESTORED', status = :status, ended_ms = :now_ms
WHERE id = :id AND state = 'DISPATCHED'
    AND EXISTS (
        SELECT 1 FROM purchases p WHERE p.id = single_calls.purchase_id AND p.state IN ('LIVE', 'VOID')
    )
RETURNING purchase_id;

-- name: give_credit_back
-- `is_bounded` 1: for a failure of the target, of which as many are given back as were granted, and no more.
UPDATE credits SET remaining = remaining + 1, restored = restored + :is_bounded
WHERE number = (SELECT number FROM purchases WHERE id = :id) AND (restored < granted OR :is_bounded = 0)
RETURNING remaining;

-- name: settled_assets
SELECT network, shown, extra FROM settled_assets;

-- name: keep_asset
INSERT INTO settled_assets (network, shown, extra) VALUES (:network, :shown, :extra)
ON CONFLICT (network) DO UPDATE SET shown = excluded.shown, extra = excluded.extra;

-- name: slug_of_gate
SELECT slug FROM paygates WHERE id = :id;

-- Creates with an Idempotency-Key --------------------------------------------------------------------------------

-- name: find_creation
SELECT fingerprint, answer FROM creations WHERE scope = :scope AND key = :key AND created_ms > :since_ms;

-- name: forget_creation
DELETE FROM creations WHERE scope = :scope AND key = :key AND created_ms <= :since_ms;

-- Of the others a handful each, for whoever spends a credit waits: many may have come a day ago.
-- name: forget_creations
DELETE FROM creations WHERE (scope, key) IN (
    SELECT scope, key FROM creations WHERE created_ms <= :since_ms ORDER BY created_ms LIMIT 64
);

-- name: insert_creation
INSERT INTO creations (scope, key, fingerprint, answer, created_ms)
VALUES (:scope, :key, :fingerprint, :answer, :now_ms);
