-- Settlements, their events and who has seen what of them (contract 5.2, 7). A race is decided by one conditional
-- statement whose rows are counted.

-- name: find_settlement
SELECT * FROM settlements WHERE network = :network AND asset = :asset AND payer = :payer AND nonce = :nonce;

-- name: read_settlement
SELECT * FROM settlements WHERE id = :id;

-- Anybody may ask: each name by an index of its own, where one question for both looks at all of the network's.
-- name: find_named
SELECT * FROM (
    SELECT * FROM settlements WHERE network = :network AND nonce = :name
    UNION ALL
    SELECT * FROM settlements WHERE network = :network AND alias = :name AND alias <> ''
) AS named
ORDER BY created_ms LIMIT 1;

-- No bare created_ms: else all that the payer ever paid is looked at, in the order of an index that begins with him.
-- name: find_payment
SELECT * FROM settlements
WHERE network = :network AND payer = :payer AND nonce = :nonce AND (:asset = '' OR asset = :asset)
ORDER BY created_ms + 0 DESC LIMIT 1;

-- name: insert_settlement
INSERT INTO settlements (
    id, network, asset, payer, nonce, kind, pay_to, value, state, version, attempt, payment, requirements,
    requirements_hash, confirm, purchase_data, signer, holder, alias, tenant, created_ms, updated_ms
) VALUES (
    :id, :network, :asset, :payer, :nonce, :kind, :pay_to, :value, 'CLAIMED', 1, 1, :payment, :requirements,
    :requirements_hash, :confirm, :purchase_data, :signer, :holder, :alias, :tenant, :now_ms, :now_ms
)
ON CONFLICT DO NOTHING
RETURNING *;

-- A failed payment is claimed again by a new presentation of it, with that presentation's terms; whom it pays, and how
-- much, is the payment's own.
-- name: reclaim_settlement
UPDATE settlements SET
    state = 'CLAIMED', version = version + 1, attempt = attempt + 1, kind = :kind, payment = :payment,
    requirements = :requirements, requirements_hash = :requirements_hash, confirm = :confirm,
    purchase_data = :purchase_data, signer = :signer, holder = :holder, tenant = :tenant, fence = fence + 1, failures = 0,
    retry_ms = 0,
    transaction_hash = '', foreign_hash = NULL, block_number = NULL, block_hash = NULL, proof = NULL, error = NULL,
    handed_out_ms = NULL, updated_ms = :now_ms
WHERE id = :id AND state = 'FAILED' AND version = :version AND attempt < :attempts_max
    AND proof IN ('never_sent', 'reverted')
RETURNING *;

-- name: add_event
INSERT INTO settlement_events (settlement_id, version, attempt, from_state, to_state, detail, created_ms)
VALUES (:settlement_id, :version, :attempt, :from_state, :to_state, :detail, :now_ms);

-- name: set_signed
UPDATE settlements SET
    state = 'SIGNED', version = version + 1, signer = :signer, transaction_hash = :transaction_hash, updated_ms = :now_ms
WHERE id = :id AND state = 'CLAIMED' AND version = :version
RETURNING *;

-- Whose row was taken over by another process writes nothing: the fence has grown.
-- name: move
UPDATE settlements SET
    state = :to_state, version = version + 1, block_number = :block_number, block_hash = :block_hash, proof = :proof,
    error = :error, foreign_hash = :foreign_hash, failures = 0, retry_ms = 0, updated_ms = :now_ms
WHERE id = :id AND state = :from_state AND version = :version AND fence = :fence
RETURNING *;

-- The same, and the success goes to who moves the row; nothing is moved where somebody has it already.
-- name: move_and_hand_out
UPDATE settlements SET
    state = :to_state, version = version + 1, block_number = :block_number, block_hash = :block_hash, proof = :proof,
    error = :error, foreign_hash = :foreign_hash, failures = 0, retry_ms = 0, updated_ms = :now_ms,
    handed_out_ms = :now_ms
WHERE id = :id AND state = :from_state AND version = :version AND fence = :fence AND handed_out_ms IS NULL
RETURNING *;

-- A block that showed an outcome is gone: whoever saw it first carries the row forward from here.
-- name: reopen
UPDATE settlements SET
    state = 'BROADCAST', version = version + 1, block_number = NULL, block_hash = NULL, proof = NULL, error = NULL,
    foreign_hash = NULL, holder = :holder, fence = fence + 1, failures = 0, retry_ms = 0, updated_ms = :now_ms
WHERE id = :id AND state = :from_state AND version = :version
RETURNING *;

-- A success is handed out once: of any number of callers, the one whose update returns the row.
-- name: hand_out
UPDATE settlements SET handed_out_ms = :now_ms
WHERE id = :id AND attempt = :attempt AND handed_out_ms IS NULL AND state IN ('BROADCAST', 'MINED', 'CONFIRMED')
RETURNING *;

-- name: name_transaction
UPDATE settlements SET transaction_hash = :new_hash, version = version + 1, updated_ms = :now_ms
WHERE id = :id AND version = :version AND fence = :fence AND state IN ('SIGNED', 'BROADCAST', 'MINED')
RETURNING *;

-- Without the network, which is the slot's: by its index all that is there would be looked at.
-- name: name_replacement
UPDATE settlements SET transaction_hash = :new_hash, version = version + 1, updated_ms = :now_ms
WHERE transaction_hash = :old_hash AND state IN ('SIGNED', 'BROADCAST')
    AND id IN (
        SELECT settlement_id FROM settlement_slots
        WHERE network = :network AND signer = :signer AND signer_nonce = :signer_nonce
    )
RETURNING *;

-- Everything unfinished whose process is no longer alive.
-- name: take_over
UPDATE settlements SET holder = :holder, fence = fence + 1
WHERE state NOT IN ('CONFIRMED', 'FAILED') AND holder <> :holder
    AND holder NOT IN (SELECT id FROM hub_processes WHERE expires_ms > :now_ms)
RETURNING id;

-- name: find_orphan
SELECT id FROM settlements
WHERE state NOT IN ('CONFIRMED', 'FAILED') AND holder <> :holder
    AND holder NOT IN (SELECT id FROM hub_processes WHERE expires_ms > :now_ms)
LIMIT 1;

-- What is of much later than now is of a clock that was put back: it waits for no time to come again.
-- name: list_unfinished
SELECT * FROM settlements
WHERE state NOT IN ('CONFIRMED', 'FAILED') AND holder = :holder
    AND (updated_ms <= :before_ms OR updated_ms > CAST(:now_ms AS BIGINT) + 1000)
    AND (retry_ms <= :now_ms OR retry_ms > CAST(:now_ms AS BIGINT) + :longest_ms)
    AND (updated_ms > :after_ms OR (updated_ms = :after_ms AND id > :after_id))
ORDER BY updated_ms, id LIMIT :limit;

-- What the books say of each of these rows contradicts itself: the first invariant that it breaks (security 5), as
-- `invariants_hub.sql` has them for all rows. One statement, so that no row is seen between two of its commits.
-- name: list_broken
SELECT id, rule FROM (
    SELECT s.id AS id, CASE
        WHEN s.proof IS NOT NULL THEN 'i8_failed_has_a_proof'
        WHEN s.state = 'MINED' AND s.block_number IS NULL THEN 'i6_what_is_mined_names_its_transaction'
        WHEN s.state IN ('SIGNED', 'BROADCAST', 'MINED') AND NOT EXISTS (
            SELECT 1 FROM raw_transactions r
            JOIN settlement_slots l ON l.network = r.network AND l.signer = r.signer AND l.signer_nonce = r.signer_nonce
            WHERE r.hash = s.transaction_hash AND l.settlement_id = s.id AND l.attempt = s.attempt
        ) THEN 'i9_signed_is_what_was_signed'
        WHEN (SELECT COUNT(*) FROM settlement_events e WHERE e.settlement_id = s.id AND e.version <= s.version) <> s.version
            OR EXISTS (SELECT 1 FROM settlement_events e WHERE e.settlement_id = s.id AND e.version > s.version)
        THEN 'i12_the_log_is_dense'
        WHEN NOT EXISTS (
            SELECT 1 FROM settlement_events e
            WHERE e.settlement_id = s.id AND e.version = s.version AND e.to_state = s.state AND e.attempt = s.attempt
        ) THEN 'i12_the_log_ends_where_the_row_is'
    END AS rule
    FROM settlements s
    WHERE s.state NOT IN ('CONFIRMED', 'FAILED') AND s.holder = :holder
        AND s.updated_ms >= :from_ms AND s.updated_ms <= :to_ms
        AND (s.retry_ms <= :now_ms OR s.retry_ms > CAST(:now_ms AS BIGINT) + :longest_ms)
) AS judged
WHERE rule IS NOT NULL;

-- name: set_aside
UPDATE settlements SET failures = failures + :times
WHERE id = :id AND holder = :holder AND state NOT IN ('CONFIRMED', 'FAILED')
RETURNING failures;

-- name: leave_until
UPDATE settlements SET retry_ms = :retry_ms WHERE id = :id;

-- MATERIALIZED, here and below: else all that was ever settled is looked at, in the order of an index that begins with
-- the network.
-- name: count_set_aside
WITH unfinished AS MATERIALIZED (
    SELECT network FROM settlements WHERE state NOT IN ('CONFIRMED', 'FAILED') AND failures >= :failures
)
SELECT network, COUNT(*) AS total FROM unfinished GROUP BY network;

-- name: list_blocks
SELECT DISTINCT block_number, block_hash FROM settlements
WHERE network = :network AND block_number >= :from_block AND block_hash IS NOT NULL
    AND state IN ('MINED', 'CONFIRMED', 'FAILED')
ORDER BY block_number DESC, block_hash;

-- name: list_in_block
SELECT * FROM settlements
WHERE network = :network AND block_number = :block_number AND block_hash = :block_hash
    AND state IN ('MINED', 'CONFIRMED', 'FAILED')
ORDER BY id LIMIT :limit;

-- name: list_confirmed
SELECT * FROM settlements
WHERE network = :network AND state = 'CONFIRMED' AND block_hash IS NULL
    AND (updated_ms > :after_ms OR (updated_ms = :after_ms AND id > :after_id))
ORDER BY updated_ms, id LIMIT :limit;

-- name: newest_confirmed
SELECT MAX(updated_ms) AS newest_ms FROM settlements
WHERE network = :network AND state = 'CONFIRMED' AND block_hash IS NULL AND updated_ms <= :until_ms;

-- name: list_history
-- Each half comes newest first out of an index of its own, and the rows of the page alone are read.
SELECT s.* FROM (
    SELECT created_ms, id FROM settlements
    WHERE :as_signer = 1 AND payer = :wallet AND (:network = '' OR network = :network)
    UNION ALL SELECT created_ms, id FROM settlements
    WHERE :as_recipient = 1 AND pay_to = :wallet AND (:as_signer = 0 OR payer <> :wallet)
        AND (:network = '' OR network = :network)
    ORDER BY created_ms DESC, id DESC LIMIT :limit OFFSET :offset
) AS page CROSS JOIN settlements s
WHERE s.id = page.id ORDER BY page.created_ms DESC, page.id DESC;

-- name: count_history
SELECT (
    SELECT count(*) FROM settlements
    WHERE :as_signer = 1 AND payer = :wallet AND (:network = '' OR network = :network)
) + (
    SELECT count(*) FROM settlements
    WHERE :as_recipient = 1 AND pay_to = :wallet AND (:as_signer = 0 OR payer <> :wallet)
        AND (:network = '' OR network = :network)
) AS total;

-- name: count_unfinished
WITH unfinished AS MATERIALIZED (
    SELECT network, state FROM settlements WHERE state NOT IN ('CONFIRMED', 'FAILED')
)
SELECT network, state, count(*) AS settlements FROM unfinished GROUP BY network, state;
