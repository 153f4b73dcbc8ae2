-- A management token is looked for before it is told whose it is: one that is none is refused (specification 5.5).
CREATE INDEX paygates_by_management ON paygates (management_hash) WHERE management_hash IS NOT NULL;
