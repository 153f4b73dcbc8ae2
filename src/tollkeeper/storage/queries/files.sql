-- Which objects of the store of files are sold, by which PayGate.

-- name: insert_file
INSERT INTO files (id, gate_id, name, content_type, size_bytes, sha256, created_ms)
VALUES (:id, :gate_id, :name, :content_type, :size_bytes, :sha256, :now_ms);

-- name: replace_files
UPDATE files SET replaced_ms = :now_ms WHERE gate_id = :gate_id AND replaced_ms IS NULL;

-- name: file_by_id
SELECT id, name, content_type, size_bytes, sha256 FROM files WHERE id = :id;

-- A deleted gate's content stays while a call of it is due, or may be yet: it is paid or may be, or nobody knows, or is held,
-- or not void yet (0069).
-- name: files_to_delete
-- CROSS JOIN: from the content's own gate, and not from all that was ever sold anywhere, for each content anew.
SELECT f.id FROM files f WHERE f.replaced_ms < :before_ms AND NOT EXISTS (
    SELECT 1 FROM paygates g CROSS JOIN holdings p
    WHERE g.id = f.gate_id AND g.file_id = f.id AND g.deleted_ms IS NOT NULL AND p.gate_id = g.id
    AND (p.state IN ('CLAIMED', 'PARKED', 'LIVE')
        OR (p.follow_ms IS NOT NULL AND (p.state = 'FAILED' OR p.failure = 'settlement_failed'))
        OR (p.state = 'VOID' AND p.failure LIKE 'gate_deleted, %')
        OR (p.state = 'VOID' AND p.failure = 'gate_deleted' AND p.remaining = p.granted
            AND (p.expires_ms IS NULL OR p.expires_ms > :now_ms)))
) ORDER BY f.replaced_ms LIMIT :limit;

-- name: leaving
SELECT id FROM files WHERE id = :id AND replaced_ms < :before_ms;

-- name: keep_replaced
UPDATE files SET replaced_ms = :now_ms WHERE id = :id AND replaced_ms < :before_ms;

-- name: delete_file
DELETE FROM files WHERE id = :id AND replaced_ms < :before_ms;

-- name: orphan
SELECT :id AS id WHERE NOT EXISTS (SELECT 1 FROM files WHERE id = :id)
AND NOT EXISTS (SELECT 1 FROM uploads WHERE file_id = :id);

-- name: begin_upload
INSERT INTO uploads (file_id, mark, begun_ms) VALUES (:file_id, :mark, :now_ms);

-- name: sell_upload
DELETE FROM uploads WHERE file_id = :file_id AND is_cut = 0 RETURNING file_id;

-- name: cut_upload
UPDATE uploads SET is_cut = 1 WHERE file_id = :file_id RETURNING file_id;

-- name: cut_uploads_of_the_dead
-- :living = the marks of the processes that may still be taking theirs, with a blank between; '' where none may.
UPDATE uploads SET is_cut = 1 WHERE is_cut = 0 AND (:living = '' OR :living NOT LIKE '%' || mark || '%')
RETURNING file_id;

-- name: cut_uploads
SELECT file_id FROM uploads WHERE is_cut = 1 ORDER BY begun_ms LIMIT :limit;

-- name: forget_upload
DELETE FROM uploads WHERE file_id = :file_id AND is_cut = 1;
