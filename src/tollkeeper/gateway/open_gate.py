"""A PayGate ready to be called: its target taken apart, its 402s made, its header lines encoded (contract 4.1)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.forwarding import VIA, gateway_headers, header_lines, name_rules, request_target
from tollkeeper.core.paygates.locations import Locations
from tollkeeper.core.paygates.target_signing import SIGNATURE_NAMES, HmacSecret
from tollkeeper.core.x402.version2 import TakenOffer, offer_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tollkeeper.core.http.target_addresses import TargetUrl
    from tollkeeper.core.paygates.challenge import Challenge
    from tollkeeper.core.paygates.model import PayGate
    from tollkeeper.core.payment_offers import Asset, OfferedPayment, PresentedPayment
    from tollkeeper.core.x402.version1 import Requirements
    from tollkeeper.edge.target.relay import TargetUse

NOTHING: Final[frozenset[bytes]] = frozenset()


@dataclass(frozen=True, slots=True)
class GateWire:
    """`path` (with the target's own query) and `lines` of the head that a gate's target is sent.

    `withheld` are the caller's headers whose names the gateway sets at this gate, `own_parameters` the names in the
    target's own query; `secrets` sign, where there are some; `locations` says what callers are told of where its
    answers lead. A file PayGate, which has no target, has none.
    """

    path: bytes = b""
    lines: bytes = b""
    withheld: frozenset[bytes] = NOTHING
    secrets: tuple[HmacSecret, ...] = field(default=(), repr=False)
    own_parameters: frozenset[str] = frozenset()
    locations: Locations | None = None


def gate_wire(gate: PayGate, target: TargetUrl, public_url: str) -> GateWire:
    """Make what every call of this gate sends: the target's host, the gateway's own marks, the owner's headers."""
    public, access_url = urlsplit(public_url), f"{public_url}/{gate.slug}"
    values = [value for _, value in gate.target_headers]
    locations = Locations.of(target, access_url, values, allow_subpaths=gate.allow_subpaths)
    own = gateway_headers(
        slug=gate.slug, payer="", purchase_id="", request_id="", client="", scheme=public.scheme, host=public.netloc
    )
    lines = header_lines([(b"host", target.authority.encode("ascii")), *own, (b"via", VIA)])
    path = request_target(target, b"", b"")
    owners = [(name.encode(), value.encode()) for name, value in gate.target_headers]
    withheld = frozenset(name_rules(name).normal for name, _ in owners) | (SIGNATURE_NAMES if gate.secrets else NOTHING)
    return GateWire(path, lines + header_lines(owners), withheld, gate.secrets, locations.own_names, locations)


class ReadyChallenge:
    """The 402 of a gate as it is within one millisecond, but for what differs from answer to answer.

    `start`, how the caller's address stands, `middle`, the request id, `end`: in this order. `methods` get it.
    """

    __slots__ = ("end", "made_ms", "methods", "middle", "start")

    def __init__(self) -> None:
        self.made_ms = -1
        self.methods: frozenset[str] = frozenset()
        self.start = self.middle = self.end = b""


@dataclass(frozen=True, slots=True)
class OpenGate:
    """A gate ready to be called: its target taken apart, its challenge made. One that sells a file has no target.

    `settled` are the assets of its networks, its own first, that the facilitator settles now; `offers` are their
    challenges. Where there is none it sells nothing, and serves what was bought.

    `wire` is what of its answers and of the requests to its target is the same each time, `use` whose share they take.
    `takes_header`: whoever shows
    the payment again may spend its credits; `is_of_wallets`: only its payer may (contract 4.3, `creditBinding`).
    """

    gate: PayGate
    target: TargetUrl | None
    settled: tuple[Asset, ...]
    offers: Mapping[str, Challenge]
    resource: str
    wire: GateWire
    use: TargetUse
    takes_header: bool
    is_of_wallets: bool
    is_deleted: bool = False
    ready: ReadyChallenge = field(default_factory=ReadyChallenge)

    @property
    def sells(self) -> bool:
        """True if nothing keeps a payer from buying here: `unsold` would say why."""
        return self.gate.is_enabled and not self.is_deleted and bool(self.offers)

    @property
    def challenge(self) -> Challenge:
        """The 402 where nobody names a network: on the gate's own, or its first that can be paid on.

        Raises: UNAVAILABLE where there is none.
        """
        if not self.offers:
            raise self.unpayable()
        return self.offers[self.settled[0].network.name]

    def unsold(self) -> ApiError | None:
        """Why nobody can buy here now, whatever he pays with: 404, or 503 for a while; None where it sells."""
        if self.is_deleted:
            return not_found()
        if not self.gate.is_enabled:
            return ApiError(Code.NOT_FOUND, "this PayGate sells nothing at present")
        return None if self.offers else self.unpayable()

    def asset_on(self, network: str) -> Asset:
        """The asset of one of the networks of `offers`. Raises: UNAVAILABLE for another."""
        asset = next((one for one in self.settled if one.network.name == network), None)
        if asset is None:
            raise self.unpayable()
        return asset

    def unpayable(self) -> ApiError:
        """503 while none of its networks can be paid on; whether anything was paid before, it does not say."""
        networks = " and ".join(one.network for one in self.gate.recipients)
        return ApiError(
            Code.UNAVAILABLE, f"on {networks} nothing can be paid for now; send the same request again later"
        )

    def taken_by(self, presented: PresentedPayment) -> TakenOffer | None:
        """The gate's offer as it stands, and the one that a payment of version 2 takes; None for one of version 1.

        Its fee payer is the one that the payer named, as in `settled_by`.
        """
        if presented.accepted is None:
            return None
        return TakenOffer(offer_of(self.settled_by(presented.offered, self.gate.price_micro)), presented.accepted)

    def settled_by(self, offered: OfferedPayment, amount_micro: int) -> Requirements:
        """The requirements that a payment is verified and settled against.

        A fee payer is the one that the payer named: a 402 of before the facilitator changed it is as good.
        """
        shown = self.offers[offered.key.network].requirements
        extra = {**shown.extra, "feePayer": offered.fee_payer} if offered.fee_payer else shown.extra
        return replace(shown, amount=amount_micro, extra=extra)


def not_found() -> ApiError:
    """404 for a slug without a gate."""
    return ApiError(Code.NOT_FOUND, "there is no such PayGate")
