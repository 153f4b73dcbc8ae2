-- Direct transfers have no fee any more, and need no keys of the gateway's own.
DROP TABLE returned_fees;
DROP TABLE transfer_keys;
