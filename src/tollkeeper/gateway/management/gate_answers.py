"""PayGates as they are read (contract 3.1): the described bodies, made of what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET, to_builtins

from tollkeeper.core.usdc import format_usdc
from tollkeeper.core.wallets import shown_address
from tollkeeper.gateway.management.bodies import ListedPayGate, ShownCounters, ShownRecipient, ShownTrust

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.core.paygates.model import Counters, PayGate, Trust


def paygate_body(gate: PayGate, counters: Counters, access_url: str, iso: Callable[[int], str]) -> JsonObject:
    """Return a PayGate as its owner, its page and its commands read it."""
    file = gate.file
    shown = ListedPayGate(
        id=gate.id,
        slug=gate.slug,
        access_url=access_url,
        target_url=gate.target_url,
        price=format_usdc(gate.price_micro),
        credits=gate.credits,
        method=",".join(gate.methods),
        title=gate.title,
        description=gate.description,
        assume_valid=gate.assume_valid,
        require_auth=gate.require_auth,
        payment_address=shown_address(gate.payment_address),
        network=gate.network,
        accepts=[ShownRecipient(one.network, shown_address(one.payment_address)) for one in gate.accepts],
        mime_type=gate.mime_type,
        is_enabled=gate.is_enabled,
        header_auth_mode=gate.header_auth_mode,
        credit_binding=gate.credit_binding,
        on_failure=gate.on_failure,
        credits_expire_after=gate.credits_expire_after_seconds,
        resource_type="url" if file is None else "file",
        file_name=UNSET if file is None else file.name,
        file_size=UNSET if file is None else file.size_bytes,
        content_type=UNSET if file is None else file.content_type,
        sha256=UNSET if file is None else file.sha256,
        allow_subpaths=gate.allow_subpaths,
        stream=gate.stream,
        payer_proof=gate.payer_proof,
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
