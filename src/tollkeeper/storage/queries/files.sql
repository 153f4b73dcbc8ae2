-- Which objects of the store of files are sold, by which PayGate.

-- name: insert_file
INSERT INTO files (id, gate_id, name, content_type, size_bytes, sha256, created_ms)
VALUES (:id, :gate_id, :name, :content_type, :size_bytes, :sha256, :now_ms);

-- name: replace_files
UPDATE files SET replaced_ms = :now_ms WHERE gate_id = :gate_id AND replaced_ms IS NULL;

-- name: file_by_id
SELECT id, name, content_type, size_bytes, sha256 FROM files WHERE id = :id;

-- name: files_to_delete
SELECT id FROM files WHERE replaced_ms < :before_ms ORDER BY replaced_ms LIMIT :limit;

-- name: delete_file
DELETE FROM files WHERE id = :id AND replaced_ms < :before_ms;
