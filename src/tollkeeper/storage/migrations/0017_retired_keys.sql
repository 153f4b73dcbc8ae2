-- Keys of the ring under which nothing is sealed any more: what made credit tokens of each is kept, sealed, so that
-- the tokens that buyers hold stay good (contract 4.3).
CREATE TABLE retired_keys (
    id TEXT PRIMARY KEY,
    token_key BYTEA NOT NULL,
    retired_ms BIGINT NOT NULL
);
