-- What happened at gates, beside the ledger: counted in memory and written in batches (contract 2).
CREATE TABLE traffic_hours (
    gate_id BIGINT NOT NULL REFERENCES paygates (id),
    hour_ms BIGINT NOT NULL,
    outcome TEXT NOT NULL,
    requests BIGINT NOT NULL,
    PRIMARY KEY (gate_id, hour_ms, outcome)
);
CREATE TABLE latency_hours (
    gate_id BIGINT NOT NULL REFERENCES paygates (id),
    hour_ms BIGINT NOT NULL,
    bucket BIGINT NOT NULL,
    calls BIGINT NOT NULL,
    PRIMARY KEY (gate_id, hour_ms, bucket)
);
-- One row per request, as far as there was room; no payload, no secret.
CREATE TABLE requests (
    id TEXT PRIMARY KEY,
    gate_id BIGINT NOT NULL REFERENCES paygates (id),
    at_ms BIGINT NOT NULL,
    method TEXT NOT NULL,
    status BIGINT NOT NULL,
    outcome TEXT NOT NULL,
    code TEXT,
    duration_us BIGINT NOT NULL,
    purchase_id TEXT
);
CREATE INDEX requests_by_gate ON requests (gate_id, at_ms);
CREATE INDEX requests_by_time ON requests (at_ms);
