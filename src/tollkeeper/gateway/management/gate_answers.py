"""PayGates as they are read (contract 3.1): the described bodies, made of what is stored."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Final

from msgspec import UNSET, to_builtins

from tollkeeper.core.paygates.model import PayGate
from tollkeeper.core.usdc import format_usdc
from tollkeeper.core.wallets import shown_address
from tollkeeper.gateway.management.bodies import ListedPayGate, ShownCounters, ShownRecipient, ShownTrust

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.core.paygates.model import Counters, Trust

_SHOWN_OTHERWISE: Final = {"payment_address", "accepts", "target_headers", "owner_wallet"}
_AS_STORED: Final = {one.name for one in fields(PayGate)} & {*ListedPayGate.__struct_fields__} - _SHOWN_OTHERWISE


def paygate_body(gate: PayGate, counters: Counters, access_url: str, iso: Callable[[int], str]) -> JsonObject:
    """Return a PayGate as its owner, its page and its commands read it."""
    file = gate.file
    shown = ListedPayGate(
        **{name: getattr(gate, name) for name in _AS_STORED},
        access_url=access_url,
        price=format_usdc(gate.price_micro),
        method=",".join(gate.methods),
        payment_address=shown_address(gate.payment_address),
        accepts=[ShownRecipient(one.network, shown_address(one.payment_address)) for one in gate.accepts],
        credits_expire_after=gate.credits_expire_after_seconds,
        resource_type="url" if file is None else "file",
        file_name=UNSET if file is None else file.name,
        file_size=UNSET if file is None else file.size_bytes,
        content_type=UNSET if file is None else file.content_type,
        sha256=UNSET if file is None else file.sha256,
        target_headers=[name for name, _ in gate.target_headers],
        owner_wallet=None if gate.owner_wallet is None else shown_address(gate.owner_wallet),
        created_at=iso(gate.created_ms),
        updated_at=iso(gate.updated_ms),
        counters=ShownCounters(
            counters.challenges,
            counters.purchases,
            counters.calls,
            counters.failures,
            format_usdc(counters.revenue_micro),
        ),
    )
    body: JsonObject = to_builtins(shown)
    return body


def trust_body(trust: Trust) -> JsonObject:
    """Return a gate's sales on trust as its owner reads them (contract 4.4)."""
    open_amount, failed_amount = format_usdc(trust.open_micro), format_usdc(trust.failed_micro)
    body: JsonObject = to_builtins(ShownTrust(trust.open, open_amount, trust.failed, failed_amount))
    return body
