"""A PayGate for tests: one valid gate, whose fields a test replaces."""

from __future__ import annotations

from typing import Final

from tests.core.payments import NOW_SECONDS, PAY_TO
from tollkeeper.core.paygates.model import PayGate

NOW_MS: Final = NOW_SECONDS * 1000
GATE: Final = PayGate(
    id=7,
    slug="abc12345",
    version=3,
    target_url="https://api.example/v1",
    price_micro=10_000,
    credits=5,
    methods=("GET", "POST"),
    title="A title",
    description="",
    assume_valid=False,
    require_auth=False,
    network="base-sepolia",
    payment_address=PAY_TO,
    mime_type="application/json",
    is_enabled=True,
    owner_wallet="0x857b06519e91e3a54538791bdbb0e22373e36b66",
    created_ms=NOW_MS - 1000,
    updated_ms=NOW_MS - 500,
)
