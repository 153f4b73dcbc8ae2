-- The journal of calls, as SQLite says it. What PostgreSQL says in place of `json_each` is in `spending_sqlite.sql` and in
-- migration 0033.

-- name: write_in_journal
-- :spent = {call id: number of its purchase, ...}, :ended = {status: [call id, ...], ...}, :interrupted = [call id, ...]
INSERT INTO call_journal (written_ms, spent, ended, interrupted) VALUES (:now_ms, :spent, :ended, :interrupted)
RETURNING number;

-- name: newest_of_journal
SELECT coalesce(max(number), 0) AS number FROM call_journal;

-- name: note_open_calls
INSERT INTO open_calls (ledger, since) VALUES (:ledger, :since)
ON CONFLICT (ledger) DO UPDATE SET since = excluded.since;

-- name: spent_in_journal
-- :calls = [call id, ...]; those of them that the rows from :first to :last have, with their purchases.
SELECT c.key AS call_id, j.number AS journal_number, p.*
FROM call_journal j CROSS JOIN json_each(j.spent) c CROSS JOIN holdings p
WHERE j.number BETWEEN :first AND :last AND c.key IN (SELECT value FROM json_each(:calls)) AND p.number = c.value;

-- name: restore_in_journal
INSERT INTO credits_given (cause, reason, purchase_id, delta, created_ms)
SELECT :id, 'restore', p.id, 1, :now_ms FROM purchases p WHERE p.id = :purchase_id AND p.state = 'LIVE'
ON CONFLICT (cause, reason) DO NOTHING
RETURNING purchase_id;

-- name: open_in_journal
-- Calls without an end of ledgers that are dead. :living = as in `interrupt_calls`.
WITH first_row AS (
    SELECT min(since) AS number FROM open_calls
    WHERE :living = '' OR :living NOT LIKE '%' || substr(ledger, 1, 8) || '%'
)
SELECT c.key AS id FROM call_journal j CROSS JOIN json_each(j.spent) c
WHERE j.number >= (SELECT number FROM first_row)
    AND (:living = '' OR (length(c.key) = 32 AND :living NOT LIKE '%' || substr(c.key, 13, 8) || '%'))
    AND c.key NOT IN (SELECT id FROM journal_ends WHERE number >= (SELECT number FROM first_row))
    AND NOT EXISTS (SELECT 1 FROM credits_given g WHERE g.cause = c.key AND g.reason = 'restore');

-- name: forget_open_calls
-- Of ledgers that are dead nothing older is open. Where none lives, none is known any more.
DELETE FROM open_calls WHERE :living = '';

-- name: move_open_calls
UPDATE open_calls SET since = (SELECT coalesce(max(number), 0) + 1 FROM call_journal)
WHERE :living NOT LIKE '%' || substr(ledger, 1, 8) || '%';
