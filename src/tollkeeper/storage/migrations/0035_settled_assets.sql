-- What the facilitator settled on each network when that was last heard of: payments on one that is away for a while are
-- read by it (contract 4.3).
CREATE TABLE settled_assets (
    network TEXT PRIMARY KEY NOT NULL,
    shown TEXT NOT NULL,
    extra TEXT NOT NULL
);
