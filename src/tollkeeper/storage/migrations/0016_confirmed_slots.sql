-- What was confirmed where blocks are known by their numbers alone, to be looked at again until it is final.
CREATE INDEX settlements_confirmed ON settlements (network, updated_ms, id)
    WHERE state = 'CONFIRMED' AND block_hash IS NULL;
