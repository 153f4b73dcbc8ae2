-- How many credits were given back for failures of the target (`onFailure: restore`): at most as many as were granted.
ALTER TABLE credits ADD COLUMN restored BIGINT NOT NULL DEFAULT 0 CHECK (restored >= 0 AND restored <= granted);
