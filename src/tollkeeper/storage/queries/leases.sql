-- Which hub processes are alive, and which of them does what only one may do at a time (security F20).

-- name: join_process
INSERT INTO hub_processes (id, expires_ms) VALUES (:id, :expires_ms);

-- name: renew_process
UPDATE hub_processes SET expires_ms = :expires_ms WHERE id = :id AND expires_ms > :now_ms RETURNING id;

-- Nobody lives a minute longer than who says so now: that was said before the clock was put back. Who lives says it anew.
-- name: correct_processes
UPDATE hub_processes SET expires_ms = :expires_ms WHERE expires_ms > CAST(:expires_ms AS BIGINT) + 60000;

-- name: leave_process
DELETE FROM hub_processes WHERE id = :id;

-- name: forget_processes
DELETE FROM hub_processes WHERE expires_ms <= :now_ms OR :are_all_dead = 1;

-- name: take_lease
INSERT INTO leases (name, holder, token) VALUES (:name, :holder, 1)
ON CONFLICT (name) DO UPDATE SET holder = :holder, token = leases.token + 1
WHERE leases.holder <> :holder
    AND leases.holder NOT IN (SELECT id FROM hub_processes WHERE expires_ms > :now_ms)
RETURNING token;

-- name: read_lease
SELECT holder, token FROM leases WHERE name = :name;

-- An update, so that an engine that runs units side by side makes a taker wait for the unit that is fenced by it.
-- name: hold_lease
UPDATE leases SET token = token WHERE name = :name AND holder = :holder AND token = :token RETURNING token;
