-- The calls of a purchase on a day: counted from the journal, and what is left once it is folded.

-- An update, so that whoever else counts or folds waits for this unit.
-- name: lock_marks
INSERT INTO journal_marks (name, counted, seen, seen_ms) VALUES ('journal', 0, 0, 0)
ON CONFLICT (name) DO UPDATE SET counted = journal_marks.counted RETURNING counted, seen, seen_ms;

-- name: mark_counted
UPDATE journal_marks SET counted = :counted;

-- name: mark_seen
UPDATE journal_marks SET seen = (SELECT coalesce(max(number), 0) FROM call_journal), seen_ms = :now_ms;

-- name: calls_of_journal
SELECT number, written_ms, spent FROM call_journal WHERE number > :after AND number <= :last ORDER BY number LIMIT :many;

-- name: add_to_days
-- :added = [[purchase's number, day, calls, folded, given back], ...], none twice.
INSERT INTO call_days (purchase_number, day, calls, folded, given_back)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]'),
    json_extract(value, '$[4]')
FROM json_each(:added) WHERE 1 = 1
ON CONFLICT (purchase_number, day) DO UPDATE SET calls = call_days.calls + excluded.calls,
    folded = call_days.folded + excluded.folded, given_back = call_days.given_back + excluded.given_back;

-- name: take_restores
-- :calls = [call id, ...]; which of them had their credits given back.
DELETE FROM credits_given WHERE reason = 'restore' AND cause IN (SELECT w.value FROM json_each(:calls) AS w) RETURNING cause;

-- name: delete_from_journal
DELETE FROM call_journal WHERE number BETWEEN :first AND :last AND written_ms < :before_ms;

-- Single calls that have ended; their ids begin with the time.
-- name: old_single_calls
SELECT s.id, s.created_ms, p.number FROM single_calls s JOIN purchases p ON p.id = s.purchase_id
WHERE s.id < :before_id AND s.created_ms < :before_ms AND s.state <> 'DISPATCHED' ORDER BY s.id LIMIT :many;

-- name: delete_single_calls
-- :calls = [call id, ...]
DELETE FROM single_calls WHERE id IN (SELECT w.value FROM json_each(:calls) AS w);
