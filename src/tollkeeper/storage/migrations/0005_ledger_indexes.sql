-- A spend writes an entry and a call at the end of their tables; an index by purchase had each of them change one more
-- page somewhere else, which doubled what a paid call writes. Only audits ask by purchase, and they read the tables whole.
DROP INDEX credit_entries_by_purchase;
DROP INDEX calls_by_purchase;
