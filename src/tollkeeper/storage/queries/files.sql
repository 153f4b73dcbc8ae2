-- Which objects of the store of files are sold, by which PayGate.

-- name: insert_file
INSERT INTO files (id, gate_id, name, content_type, size_bytes, sha256, created_ms)
VALUES (:id, :gate_id, :name, :content_type, :size_bytes, :sha256, :now_ms);

-- name: replace_files
UPDATE files SET replaced_ms = :now_ms WHERE gate_id = :gate_id AND replaced_ms IS NULL;

-- name: file_by_id
SELECT id, name, content_type, size_bytes, sha256 FROM files WHERE id = :id;

-- name: every_file
SELECT id, name, content_type, size_bytes, sha256 FROM files ORDER BY id;

-- No gate sells them, and no link to them is out. Beside a deleted gate's own content its gate.
-- name: left_files
SELECT f.id, g.id AS gate_id FROM files f
LEFT JOIN paygates g ON g.id = f.gate_id AND g.file_id = f.id AND g.deleted_ms IS NOT NULL
WHERE f.replaced_ms IS NOT NULL AND f.kept_until_ms < :now_ms
ORDER BY f.kept_until_ms LIMIT :limit;

-- A deleted gate's content stays while a call of it is due, or may be yet: it is paid or may be, or nobody knows, or is held,
-- or not void yet (0069). So many of its sales in one state, from a number on.
-- name: due_in_piece
SELECT count(*) AS looked, max(sold.number) AS last, max(
    CASE WHEN sold.state IN ('CLAIMED', 'PARKED', 'LIVE')
        OR (sold.follow_ms IS NOT NULL AND (sold.state = 'FAILED' OR sold.failure = 'settlement_failed'))
        OR (sold.state = 'VOID' AND sold.failure LIKE 'gate_deleted, %')
        OR (sold.state = 'VOID' AND sold.failure = 'gate_deleted' AND sold.remaining = sold.granted
            AND (sold.expires_ms IS NULL OR sold.expires_ms > :now_ms))
    THEN 1 ELSE 0 END
) AS is_due
FROM (
    SELECT number, state, failure, follow_ms, granted, remaining, expires_ms FROM holdings
    WHERE gate_id = :gate_id AND state = :state AND number > :after ORDER BY number LIMIT :many
) sold;

-- name: kept_until
SELECT kept_until_ms FROM files WHERE id = :id;

-- name: keep_file
UPDATE files SET kept_until_ms = CASE WHEN kept_until_ms < :until_ms THEN :until_ms ELSE kept_until_ms END
WHERE id = :id RETURNING id;

-- A call may have had it kept since it was found.
-- name: leave_file
DELETE FROM files WHERE id = :id AND replaced_ms IS NOT NULL AND kept_until_ms < :now_ms RETURNING id;

-- name: cut_left_file
INSERT INTO uploads (file_id, mark, begun_ms, is_cut) VALUES (:file_id, '', :now_ms, 1);

-- name: orphan
SELECT :id AS id WHERE NOT EXISTS (SELECT 1 FROM files WHERE id = :id)
AND NOT EXISTS (SELECT 1 FROM uploads WHERE file_id = :id);

-- name: mark_of_database
SELECT applied_ms FROM schema_migrations ORDER BY version LIMIT 1;

-- name: begin_upload
INSERT INTO uploads (file_id, mark, begun_ms) VALUES (:file_id, :mark, :now_ms);

-- name: sell_upload
DELETE FROM uploads WHERE file_id = :file_id AND is_cut = 0 RETURNING file_id;

-- name: cut_upload
UPDATE uploads SET is_cut = 1 WHERE file_id = :file_id RETURNING file_id;

-- name: cut_all_uploads
UPDATE uploads SET is_cut = 1 WHERE is_cut = 0 AND (:mark = '' OR mark = :mark) RETURNING file_id;

-- name: cut_uploads
SELECT file_id FROM uploads WHERE is_cut = 1 ORDER BY begun_ms LIMIT :limit;

-- name: forget_upload
DELETE FROM uploads WHERE file_id = :file_id AND is_cut = 1;
