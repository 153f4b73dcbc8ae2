-- Until when a link to a content may be out. Those that were given before this column was lived a day at most.
ALTER TABLE files ADD COLUMN kept_until_ms BIGINT NOT NULL DEFAULT 0;
UPDATE files SET kept_until_ms = (CAST(strftime('%s', 'now') AS BIGINT) + 86400) * 1000;
DROP INDEX files_replaced;
CREATE INDEX files_left ON files (kept_until_ms) WHERE replaced_ms IS NOT NULL;
