-- Who the gas of the hour was signed for: a gate's owner, a caller's address, a trusted gateway. Each has a share of it.
CREATE TABLE gas_of_tenants (
    network TEXT NOT NULL,
    tenant TEXT NOT NULL,
    minute BIGINT NOT NULL,
    gas BIGINT NOT NULL,
    PRIMARY KEY (network, tenant, minute)
);
CREATE INDEX gas_of_tenants_by_minute ON gas_of_tenants (network, minute);
ALTER TABLE settlements ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
