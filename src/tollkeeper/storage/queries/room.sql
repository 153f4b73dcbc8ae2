-- name: count_under_way
-- Through the index of those under way alone: a millisecond where they are ten thousand.
SELECT count(*) AS settlements FROM settlements
WHERE network = :network AND state IN ('CLAIMED', 'SIGNED', 'BROADCAST');
