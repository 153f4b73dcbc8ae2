-- Fees that were given back for transfers that failed in their block (contract 8). There are few.

-- name: keep_returned_fee
INSERT INTO returned_fees (call_id, network, asset, payer, nonce, transaction_hash, failed_ms, follow_ms)
VALUES (:call_id, :network, :asset, :payer, :nonce, :transaction_hash, :now_ms, :follow_ms)
ON CONFLICT (call_id) DO NOTHING;

-- What was set by a clock that was ahead is due, too.
-- name: due_returned_fees
SELECT call_id, network, asset, payer, nonce, transaction_hash, failed_ms FROM returned_fees
WHERE follow_ms <= :now_ms OR follow_ms > :latest_ms ORDER BY follow_ms LIMIT :limit;

-- name: follow_returned_fee
UPDATE returned_fees SET failed_ms = :failed_ms, follow_ms = :follow_ms WHERE call_id = :call_id;

-- name: mark_returned_fee_owed
UPDATE returned_fees SET follow_ms = NULL, made_ms = :now_ms, transaction_hash = :transaction_hash
WHERE call_id = :call_id AND made_ms IS NULL;

-- name: forget_returned_fee
DELETE FROM returned_fees WHERE call_id = :call_id;

-- name: forget_owed_fees
DELETE FROM returned_fees WHERE made_ms <= :since_ms;

-- The calls of one fee and transfer are named alike, but for a number behind a '-' at the end ('.' comes next).
-- name: charge_of_pair
SELECT state FROM single_calls
WHERE id > rtrim(:call_id, '0123456789') AND id < rtrim(rtrim(:call_id, '0123456789'), '-') || '.' AND state <> 'RESTORED';

-- name: owed_fees
SELECT f.call_id, f.network, f.payer, f.nonce, f.transaction_hash FROM returned_fees f JOIN single_calls c ON c.id = f.call_id
WHERE f.made_ms > :since_ms AND c.state = 'RESTORED' AND NOT EXISTS (
    SELECT 1 FROM single_calls a WHERE a.state <> 'RESTORED'
        AND a.id > rtrim(f.call_id, '0123456789') AND a.id < rtrim(rtrim(f.call_id, '0123456789'), '-') || '.'
) ORDER BY f.call_id;
