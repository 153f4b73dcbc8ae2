-- Which program checks the books of a role.

-- Taken by its holder again, and by anybody once it has ended; where a program is alone, by that one: it gives a late `:ended_ms`.
-- name: take_check
INSERT INTO book_checks (role, holder, until_ms, changes_ms, all_ms) VALUES (:role, :holder, :until_ms, 0, 0)
ON CONFLICT (role) DO UPDATE SET holder = :holder, until_ms = :until_ms
WHERE book_checks.holder = :holder OR book_checks.until_ms < :ended_ms
RETURNING changes_ms, all_ms;

-- name: last_check
SELECT changes_ms FROM book_checks WHERE role = :role;

-- name: note_check
UPDATE book_checks SET changes_ms = :begun_ms, all_ms = :all_ms, until_ms = :until_ms WHERE role = :role AND holder = :holder;
