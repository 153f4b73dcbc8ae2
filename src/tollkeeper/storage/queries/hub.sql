-- The hub's statements (contract 5.2, 7). A race is decided by one conditional statement whose rows are counted.

-- name: find_settlement
SELECT * FROM settlements WHERE network = :network AND asset = :asset AND payer = :payer AND nonce = :nonce;

-- name: read_settlement
SELECT * FROM settlements WHERE id = :id;

-- name: find_payment
SELECT * FROM settlements
WHERE network = :network AND payer = :payer AND nonce = :nonce
ORDER BY created_ms LIMIT 1;

-- name: insert_settlement
INSERT INTO settlements (
    id, network, asset, payer, nonce, kind, pay_to, value, state, version, attempt, payment, requirements,
    requirements_hash, confirm, purchase_data, signer, created_ms, updated_ms
) VALUES (
    :id, :network, :asset, :payer, :nonce, :kind, :pay_to, :value, 'CLAIMED', 1, 1, :payment, :requirements,
    :requirements_hash, :confirm, :purchase_data, :signer, :now_ms, :now_ms
)
ON CONFLICT DO NOTHING
RETURNING id;

-- A failed payment is claimed again by a new presentation of it, with that presentation's terms.
-- name: reclaim_settlement
UPDATE settlements SET
    state = 'CLAIMED', version = version + 1, attempt = attempt + 1, kind = :kind, payment = :payment,
    requirements = :requirements, requirements_hash = :requirements_hash, confirm = :confirm, purchase_data = :purchase_data, signer = :signer,
    transaction_hash = '', foreign_hash = NULL, block_number = NULL, proof = NULL, error = NULL, handed_out_ms = NULL, updated_ms = :now_ms
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

-- name: add_raw_transaction
INSERT INTO raw_transactions (hash, settlement_id, attempt, network, signer, signer_nonce, raw, created_ms)
VALUES (:hash, :settlement_id, :attempt, :network, :signer, :signer_nonce, :raw, :now_ms);

-- name: move
UPDATE settlements SET
    state = :to_state, version = version + 1, block_number = :block_number, proof = :proof, error = :error,
    foreign_hash = :foreign_hash,
    updated_ms = :now_ms
WHERE id = :id AND state = :from_state AND version = :version
RETURNING *;

-- A success is handed out once: of any number of callers, the one whose update returns the row.
-- name: hand_out
UPDATE settlements SET handed_out_ms = :now_ms
WHERE id = :id AND attempt = :attempt AND handed_out_ms IS NULL AND state IN ('BROADCAST', 'MINED', 'CONFIRMED')
RETURNING *;

-- name: list_unfinished
SELECT * FROM settlements
WHERE state NOT IN ('CONFIRMED', 'FAILED') AND updated_ms <= :before_ms
    AND (updated_ms > :after_ms OR (updated_ms = :after_ms AND id > :after_id))
ORDER BY updated_ms, id LIMIT :limit;

-- name: raws_of_settlement
SELECT raw, hash, signer_nonce, settlement_id, created_ms FROM raw_transactions
WHERE settlement_id = :settlement_id AND attempt = :attempt
ORDER BY created_ms DESC, hash;

-- Nothing that was mined is replaced, whatever a node that is behind says of its nonce.
-- name: add_replacement
INSERT INTO raw_transactions (hash, settlement_id, attempt, network, signer, signer_nonce, raw, created_ms)
SELECT :hash, settlement_id, raw_transactions.attempt, raw_transactions.network, raw_transactions.signer, signer_nonce,
    :raw, :now_ms
FROM raw_transactions JOIN settlements ON settlements.id = raw_transactions.settlement_id
WHERE raw_transactions.hash = :replaced_hash AND settlements.state NOT IN ('MINED', 'CONFIRMED')
ON CONFLICT DO NOTHING
RETURNING hash;

-- name: name_transaction
UPDATE settlements SET transaction_hash = :new_hash, version = version + 1, updated_ms = :now_ms
WHERE id = :id AND transaction_hash = :old_hash AND state IN ('SIGNED', 'BROADCAST', 'MINED')
RETURNING *;

-- name: read_lane
SELECT next_nonce FROM signer_lanes WHERE network = :network AND signer = :signer;

-- name: raw_from_nonce
SELECT raw, hash, signer_nonce, settlement_id, created_ms FROM raw_transactions
WHERE network = :network AND signer = :signer AND signer_nonce >= :signer_nonce
ORDER BY signer_nonce, created_ms LIMIT :limit;

-- Only a trusted gateway's request has purchase data.
-- name: signed_per_minute
SELECT raw_transactions.created_ms / 60000 AS minute,
    CASE WHEN settlements.purchase_data IS NULL THEN 0 ELSE 1 END AS is_trusted, COUNT(*) AS total
FROM raw_transactions JOIN settlements ON settlements.id = raw_transactions.settlement_id
WHERE raw_transactions.network = :network AND raw_transactions.created_ms >= :since_ms
GROUP BY 1, 2;

-- name: open_lane
INSERT INTO signer_lanes (network, signer, next_nonce) VALUES (:network, :signer, :chain_nonce)
ON CONFLICT (network, signer) DO UPDATE SET
    next_nonce = CASE WHEN signer_lanes.next_nonce < :chain_nonce THEN :chain_nonce ELSE signer_lanes.next_nonce END
RETURNING next_nonce;

-- name: take_nonce
UPDATE signer_lanes SET next_nonce = next_nonce + 1
WHERE network = :network AND signer = :signer
RETURNING next_nonce - 1 AS signer_nonce;

-- name: find_key
SELECT * FROM idempotency WHERE key = :key;

-- name: add_key
INSERT INTO idempotency (key, fingerprint, settlement_id, attempt, answer, created_ms)
VALUES (:key, :fingerprint, :settlement_id, :attempt, :answer, :now_ms)
ON CONFLICT DO NOTHING
RETURNING key;

-- The outcome of an attempt that failed stays with its keys when the payment is claimed again.
-- name: settle_keys
UPDATE idempotency SET answer = :answer
WHERE settlement_id = :settlement_id AND attempt = :attempt AND answer IS NULL;

-- name: list_history
SELECT * FROM settlements
WHERE ((:as_signer = 1 AND payer = :wallet) OR (:as_recipient = 1 AND pay_to = :wallet))
    AND (:network = '' OR network = :network)
ORDER BY created_ms DESC, id DESC LIMIT :limit OFFSET :offset;

-- name: count_history
SELECT COUNT(*) AS total FROM settlements
WHERE ((:as_signer = 1 AND payer = :wallet) OR (:as_recipient = 1 AND pay_to = :wallet))
    AND (:network = '' OR network = :network);

