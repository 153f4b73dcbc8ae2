"""The paywall: what a person sees who opens a PayGate's URL in a browser (contract 4.1).

Made once per version of a gate, as the 402 of every other client is. All of the seller's words are text in it.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tollkeeper.core.api.errors import Code
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.paygates.fields import CreditBinding, OnFailure
from tollkeeper.core.usdc import format_usdc
from tollkeeper.core.wallets import shown_address
from tollkeeper.gateway.pages import Page
from tollkeeper.web.rendering import rendered

if TYPE_CHECKING:
    from tollkeeper.core.api.errors import ApiError
    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.core.networks import Network
    from tollkeeper.core.paygates.model import PayGate
    from tollkeeper.edge.server.call import InboundCall
    from tollkeeper.gateway.open_gate import OpenGate
    from tollkeeper.web.assets import Assets

_PAGES_MAX: Final = 1_000  # some 10 KB each
# Whoever the wallet asks, the page itself talks to nobody but this gateway; what it shows runs and loads nothing.
# A wallet may open a window of its own.
_LINES: Final = (
    b"content-type: text/html; charset=utf-8\r\n"
    b"content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"img-src data: blob:; frame-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    b"cross-origin-opener-policy: same-origin-allow-popups\r\n"
    b"referrer-policy: no-referrer\r\n"
    b"x-content-type-options: nosniff\r\n"
    b"vary: Accept, Accept-Encoding, User-Agent\r\n"
)
_PACKED_LINES: Final = _LINES + b"content-encoding: gzip\r\n"
_HEADINGS: Final = {
    Code.NOT_FOUND: "Nothing is sold here",
    Code.RATE_LIMITED: "Too many requests",
    Code.UNAVAILABLE: "Not available now",
}
_ONE_DAY_SECONDS: Final = 86_400


@dataclass(frozen=True, slots=True)
class _Made:
    """A page, and the version of the gate that it is of."""

    opened: OpenGate
    plain: Page
    packed: Page


class Paywall:
    """The pages at PayGates' URLs (`gateway.pages.Pages`)."""

    def __init__(self, public_url: str, assets: Assets) -> None:
        self._root = urlsplit(public_url).path
        self._assets = assets
        self._made: dict[str, _Made] = {}

    def at(self, opened: OpenGate, call: InboundCall) -> Page:
        """Return the page of a gate that sells, packed where the browser takes it so."""
        made = self._made.get(opened.gate.slug)
        if made is None or made.opened is not opened:
            made = self._make(opened)
        takes_gzip = b"gzip" in call.head.header.get(b"accept-encoding", b"")
        return made.packed if takes_gzip else made.plain

    def _make(self, opened: OpenGate) -> _Made:
        self._made.pop(opened.gate.slug, None)
        while len(self._made) >= _PAGES_MAX:
            del self._made[next(iter(self._made))]
        page = rendered("paywall.html", self._shown(opened)).encode()
        made = _Made(opened, Page(_LINES, page), Page(_PACKED_LINES, gzip.compress(page, mtime=0)))
        self._made[opened.gate.slug] = made
        return made

    def of_refusal(self, error: ApiError) -> Page:
        """Return the page of a request that is answered with nothing to buy."""
        message = error.message[:1].upper() + error.message[1:]
        heading = _HEADINGS.get(error.code, "This cannot be opened")
        values = {"heading": heading, "sentence": message + ".", "code": error.code.value, "assets": self._assets_path}
        return Page(_LINES, rendered("refusal.html", values).encode())

    @property
    def _assets_path(self) -> str:
        return f"{self._root}/assets/{self._assets.version}"

    def _shown(self, opened: OpenGate) -> JsonObject:
        gate = opened.gate
        method = gate.methods[0]
        option = "" if method == "GET" else f" -X {method}"
        return {
            "assets": self._assets_path,
            "title": gate.title or (gate.file.name if gate.file else f"PayGate {gate.slug}"),
            "description": gate.description,
            "buys": bought(gate),
            "notes": _notes(opened),
            "url": opened.resource,
            "curl_option": option,
            "method_option": "" if method == "GET" else f" --method {method}",
            "gate": {
                "slug": gate.slug,
                "root": self._root,
                "price": format_usdc(gate.price_micro),
                "methods": list(gate.methods),
                "binding": gate.credit_binding.value,
                "requireAuth": gate.require_auth,
                "file": gate.file is not None,
                "offers": [_offer(asset.network, opened) for asset in opened.settled],
            },
        }


def _offer(network: Network, opened: OpenGate) -> JsonObject:
    asked = opened.offers[network.name].requirements
    return {
        "network": network.name,
        "label": network.label,
        "family": network.family.value,
        "chainId": network.chain_id,
        "cluster": network.cluster,
        "explorer": network.explorer,
        "node": network.public_node,
        "requirements": {
            "scheme": asked.scheme,
            "network": asked.network,
            "maxAmountRequired": str(asked.amount),
            "asset": asked.asset,
            "payTo": asked.pay_to,
            "extra": asked.extra,
        },
    }


def bought(gate: PayGate) -> str:
    """Return what one purchase grants, in words."""
    calls = "one call" if gate.credits == 1 else f"{gate.credits:,} calls"
    if gate.file is None:
        return calls
    links = "one download link" if gate.credits == 1 else f"{gate.credits:,} download links"
    return f"{links} for {gate.file.name} ({gate.file.size_bytes:,} bytes, {gate.file.content_type})"


def _notes(opened: OpenGate) -> list[str]:
    gate = opened.gate
    notes = [
        f"Paid in USDC on {NETWORKS[one.network].label} to {shown_address(one.payment_address)}"
        for one in gate.recipients
        if one.network in opened.offers
    ]
    if gate.credits_expire_after_seconds is not None:
        notes.append(f"Lost where not used within {duration(gate.credits_expire_after_seconds)}")
    if gate.require_auth or gate.credit_binding is CreditBinding.WALLET:
        notes.append("You sign in with your wallet, which costs nothing")
    if gate.file is None:
        restores = gate.on_failure is OnFailure.RESTORE
        notes.append(
            "A call that the seller's server fails is given back"
            if restores
            else "A call that the seller's server fails is used up"
        )
    return notes


def duration(seconds: int) -> str:
    """Return a time in words."""
    days, rest = divmod(seconds, _ONE_DAY_SECONDS)
    return f"{seconds:,} seconds" if rest else "a day" if days == 1 else f"{days:,} days"
