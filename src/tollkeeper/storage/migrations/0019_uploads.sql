-- Contents that are being written to the store of files, and are not sold yet (contract 4.8). The row goes in the commit
-- by which the content is sold, or once it was deleted. `mark`: the process that takes it. `is_cut`: that process is
-- dead, so what it wrote may be deleted.
CREATE TABLE uploads (
    file_id TEXT PRIMARY KEY,
    mark TEXT NOT NULL,
    begun_ms BIGINT NOT NULL,
    is_cut SMALLINT NOT NULL DEFAULT 0 CHECK (is_cut IN (0, 1))
);
