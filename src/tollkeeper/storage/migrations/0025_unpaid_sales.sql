-- Sales whose payment failed after all, by when: they are few, and those of a day count against the caps on trust.
CREATE INDEX purchases_unpaid ON purchases (updated_ms) WHERE failure = 'settlement_failed';
