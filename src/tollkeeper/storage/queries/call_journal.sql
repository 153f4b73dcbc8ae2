-- The journal of calls, as SQLite says it. What PostgreSQL says in its place is in `spending.sql`; the columns `spent`
-- and `ended` are objects.

-- name: write_in_journal
-- :spent = {call id: number of its purchase, ...}, :ended = {status: [call id, ...], ...}, :interrupted = [call id, ...]
INSERT INTO call_journal (written_ms, spent, ended, interrupted) VALUES (:now_ms, :spent, :ended, :interrupted)
RETURNING number;

-- name: newest_of_journal
SELECT coalesce(max(number), 0) AS number FROM call_journal;

-- name: note_open_calls
-- :calls = [call id, ...]
INSERT INTO open_calls (ledger, since, calls) VALUES (:ledger, :since, :calls)
ON CONFLICT (ledger) DO UPDATE SET since = excluded.since, calls = excluded.calls;

-- name: spent_in_journal
-- :calls = [call id, ...]; those of them that the rows from :first to :last have, with their purchases.
SELECT c.key AS call_id, j.number AS journal_number, p.*
FROM call_journal j CROSS JOIN json_each(j.spent) AS c CROSS JOIN holdings p
WHERE j.number BETWEEN :first AND :last AND c.key IN (SELECT w.value FROM json_each(:calls) AS w)
    AND p.number = CAST(c.value AS BIGINT);

-- name: restore_in_journal
INSERT INTO credits_given (cause, reason, purchase_id, delta, created_ms)
SELECT :id, 'restore', p.id, 1, :now_ms FROM purchases p WHERE p.id = :purchase_id AND p.state IN ('LIVE', 'VOID')
ON CONFLICT (cause, reason) DO NOTHING
RETURNING purchase_id;

-- What is noted of ledgers, whose names begin with their program's mark; of every one where it is empty.
-- name: open_calls
SELECT since, calls FROM open_calls WHERE :mark = '' OR substr(ledger, 1, 8) = :mark;

-- name: piece_of_journal
SELECT number, spent, ended, interrupted FROM call_journal WHERE number >= :first ORDER BY number LIMIT :many;

-- name: not_given_back
-- :calls = [call id, ...]
SELECT c.value AS id FROM json_each(:calls) AS c
WHERE NOT EXISTS (SELECT 1 FROM credits_given g WHERE g.cause = c.value AND g.reason = 'restore');

-- name: forget_open_calls
DELETE FROM open_calls WHERE :mark = '' OR substr(ledger, 1, 8) = :mark;
