-- The journal of calls, as SQLite says it. What PostgreSQL says in place of `json_each` is in `spending_sqlite.sql` and in
-- migration 0033.

-- name: write_in_journal
-- :spent = {call id: number of its purchase, ...}, :ended = {status: [call id, ...], ...}, :interrupted = [call id, ...]
INSERT INTO call_journal (written_ms, spent, ended, interrupted) VALUES (:now_ms, :spent, :ended, :interrupted)
RETURNING number;

-- name: newest_of_journal
SELECT coalesce(max(number), 0) AS number FROM call_journal;

-- name: note_open_calls
-- :calls = [call id, ...]
INSERT INTO open_calls (ledger, since, calls, is_marked) VALUES (:ledger, :since, :calls, 0)
ON CONFLICT (ledger) DO UPDATE SET since = excluded.since, calls = excluded.calls, is_marked = 0;

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

-- Of ledgers that are dead. :living = as in `interrupt_calls`.
-- name: first_open_row
SELECT min(since) AS first FROM open_calls WHERE :living = '' OR :living NOT LIKE '%' || substr(ledger, 1, 8) || '%';

-- name: open_in_journal
-- Their calls without an end. :first = what the statement before says, as a value: else all of the journal would be read.
WITH begun AS (
    SELECT c.key AS id FROM call_journal j CROSS JOIN json_each(j.spent) c WHERE j.number >= :first
    UNION SELECT c.value FROM open_calls o, json_each(o.calls) c
    WHERE :living = '' OR :living NOT LIKE '%' || substr(o.ledger, 1, 8) || '%'
)
SELECT id FROM begun
WHERE (:living = '' OR (length(id) = 32 AND :living NOT LIKE '%' || substr(id, 13, 8) || '%'))
    AND id NOT IN (SELECT id FROM journal_ends WHERE number >= :first)
    AND NOT EXISTS (SELECT 1 FROM credits_given g WHERE g.cause = begun.id AND g.reason = 'restore');

-- Where no process lives, no ledger is known any more.
-- name: forget_open_calls
DELETE FROM open_calls;

-- Who is looked for a second time after its death has nothing under way any more.
-- name: forget_marked_ledgers
DELETE FROM open_calls WHERE is_marked = 1 AND :living NOT LIKE '%' || substr(ledger, 1, 8) || '%';

-- name: move_open_calls
UPDATE open_calls SET since = (SELECT coalesce(max(number), 0) + 1 FROM call_journal), calls = '[]', is_marked = 1
WHERE :living NOT LIKE '%' || substr(ledger, 1, 8) || '%';
