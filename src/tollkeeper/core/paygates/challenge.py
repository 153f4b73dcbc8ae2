"""The 402 and the refusal at a gate: bodies, profiles and the header (specification 2.2; contract 4.1, 4.5, 10.1).

A gate's challenge is made once per version; only the timestamp differs between two answers, so a body is kept as the
bytes before it and the bytes after it. The header is what clients of x402 version 2 read, and stands beside each body.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tollkeeper.core.limits import CHALLENGE_TIMEOUT_SECONDS
from tollkeeper.core.paygates.fields import CreditBinding
from tollkeeper.core.usdc import MICRO_PER_USDC, format_usdc
from tollkeeper.core.wallets import shown_address
from tollkeeper.core.x402 import version2
from tollkeeper.core.x402.version1 import SCHEME, X402_VERSION, Requirements, requirements_body

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tollkeeper.core.api.errors import ApiError
    from tollkeeper.core.json_types import JsonMapping, JsonObject
    from tollkeeper.core.paygates.model import PayGate
    from tollkeeper.core.payment_offers import Asset


class Profile(StrEnum):
    """Shapes of a 402 (specification 2.2). The superset contains both others."""

    SUPERSET = "superset"
    SHAPE_A = "x402-a"
    SHAPE_B = "x402-b"


PAYMENT_REQUIRED: Final = version2.NOTHING_PAID
# Where more than one credit is sold: a client that only signs is told what becomes of its next payment (contract 10.3).
_PAYMENT_OR_CREDIT: Final = (
    f"{PAYMENT_REQUIRED}; from a wallet that holds credits here it spends one, and is not settled"
)
# What official clients spend by default in one payment.
_SPENT_MAX_MICRO: Final = MICRO_PER_USDC
_NO_WEIGHT: Final = re.compile(r"q\s*=\s*0(?:\.0*)?")


def profile_of(accept: str, default: Profile) -> Profile:
    """The profile that an `Accept` header asks for: `application/json;profile="x402-a"`, quoted or not.

    A range of weight 0 names what is not wanted (RFC 9110 12.4.2), and asks for nothing.
    """
    for media_range in accept.lower().split(","):
        media_type, *parameters = (part.strip() for part in media_range.split(";"))
        if media_type != "application/json" or any(_NO_WEIGHT.fullmatch(parameter) for parameter in parameters):
            continue
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip() == "profile" and (wanted := value.strip().strip('"')) in set(Profile):
                return Profile(wanted)
    return default


def requirements_of(gate: PayGate, asset: Asset, resource: str) -> Requirements:
    """Return what the gate asks for on the asset's network, as an x402 version 1 client reads it.

    The amount is in micro-units, the addresses are as people see them. The gate must be paid on that network.
    """
    pay_to = gate.pay_to_on(asset.network.name)
    assert pay_to is not None  # noqa: S101 - see above
    return _requirements(asset, pay_to, gate.price_micro, resource, gate.description or gate.title, gate.mime_type)


def _requirements(
    asset: Asset, pay_to: str, amount: int, resource: str, description: str, mime_type: str
) -> Requirements:
    return Requirements(
        scheme=SCHEME,
        network=asset.network.v1_name,
        amount=amount,
        asset=shown_address(asset.address),
        pay_to=shown_address(pay_to),
        resource=resource,
        description=description,
        mime_type=mime_type,
        max_timeout_seconds=CHALLENGE_TIMEOUT_SECONDS,
        extra=asset.extra,
    )


@dataclass(frozen=True, slots=True)
class Challenge:
    """Everything a gate version answers without payment. `siblings` go beside an error (contract 4.5).

    `offers` are what version 2's header names; `header` is that of an unpaid call.
    """

    requirements: Requirements
    siblings: JsonObject
    bodies: dict[Profile, tuple[bytes, bytes]]
    offers: tuple[JsonObject, ...]
    header: str

    def body(self, profile: Profile, timestamp: str) -> bytes:
        """The 402's body at this moment. Shapes A and B, to the letter, have no timestamp."""
        before, after = self.bodies[profile]
        return before + timestamp.encode() + after if after else before

    def header_beside(self, refusal: ApiError) -> str:
        """Write version 2's header beside a refusal: as of an unpaid call, but with the reason."""
        return version2.payment_required(_resource_of(self.requirements), self.offers, version2.error_of(refusal))


_MARK: Final = "\x00timestamp\x00"  # no field can hold control characters, so it stands only where we put it


def _around_timestamp(body: JsonObject) -> tuple[bytes, bytes]:
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
    before, mark, after = text.partition(json.dumps(_MARK).encode()[1:-1])
    return (before, after) if mark else (text, b"")


@dataclass(frozen=True, slots=True)
class Sold:
    """Description of the thing sold that a 402 gives beside its requirements.

    `also`: facts that a buyer must know and that most gates do not have: how credits are bound, and how long they last.
    """

    title: str
    description: str
    credits: int
    mime_type: str
    on_failure: str = "consume"
    also: JsonMapping = field(default_factory=dict)


def build_challenge(
    gate: PayGate, asset: Asset, resource: str, api_version: str, others: Sequence[Asset] = ()
) -> Challenge:
    """The challenge of one gate version on the asset's network; `accepts` has those of the others that fit beside it.

    Clients of version 1 choose among entries of one family, those of version 2 among both, and none should pay real
    money for play money.
    """
    also: JsonObject = {}
    if gate.credit_binding is not CreditBinding.PAYMENT:
        also["creditBinding"] = gate.credit_binding.value
    if gate.credits_expire_after_seconds is not None:
        also["creditsExpireAfter"] = gate.credits_expire_after_seconds
    sold = Sold(gate.title, gate.description, gate.credits, gate.mime_type, gate.on_failure.value, also)
    own = asset.network
    alike = [other for other in others if other.network.is_test is own.is_test and other.network != own]
    of_family = [requirements_of(gate, other, resource) for other in alike if other.network.family is own.family]
    of_others = [requirements_of(gate, other, resource) for other in alike if other.network.family is not own.family]
    return challenge_for(requirements_of(gate, asset, resource), asset, sold, api_version, of_family, of_others)


def transfer_challenge(asset: Asset, pay_to: str, amount_micro: int, resource: str, api_version: str) -> Challenge:
    """The challenge that asks for one transfer of so much to that address (contract 8)."""
    sold = Sold("Direct transfer", "Carries out this very transfer", 1, "application/json")
    requirements = _requirements(asset, pay_to, amount_micro, resource, sold.description, sold.mime_type)
    return challenge_for(requirements, asset, sold, api_version)


def challenge_for(
    requirements: Requirements,
    asset: Asset,
    sold: Sold,
    api_version: str,
    beside: Sequence[Requirements] = (),
    of_others: Sequence[Requirements] = (),
) -> Challenge:
    """The bodies of a 402 that asks for these requirements, or for one of those `beside`.

    `of_others`: of other families, for version 2 alone.
    """
    price = format_usdc(requirements.amount)
    symbol = asset.network.usdc.symbol
    shape_a = {"x402": {"token": symbol, "amount": price, "address": requirements.pay_to}}
    siblings: JsonObject = {
        "x402Version": X402_VERSION,
        "accepts": [requirements_body(one) for one in (requirements, *beside)],
        "paymentRequired": {"amount": price, "currency": symbol, "network": asset.network.name},
        **shape_a,
    }
    superset = {
        "x402Version": X402_VERSION,
        "error": PAYMENT_REQUIRED,
        **{name: siblings[name] for name in ("accepts", "paymentRequired", "x402")},
        "resource": {
            "title": sold.title,
            "description": sold.description,
            "credits": sold.credits,
            "onFailure": sold.on_failure,
            **sold.also,
        },
        "apiVersion": api_version,
        "timestamp": _MARK,
    }
    shape_b = {
        "error": PAYMENT_REQUIRED,
        "x402Version": X402_VERSION,
        "accepts": [sold.mime_type],
        "paymentRequired": siblings["paymentRequired"],
    }
    bodies = {
        Profile.SUPERSET: _around_timestamp(superset),
        Profile.SHAPE_A: _around_timestamp(shape_a),
        Profile.SHAPE_B: _around_timestamp(shape_b),
    }
    offers = tuple(version2.offer_of(one) for one in (requirements, *beside, *of_others))
    told = PAYMENT_REQUIRED if sold.credits == 1 else _PAYMENT_OR_CREDIT
    header = version2.payment_required(_resource_of(requirements), offers, told)
    return Challenge(requirements, siblings, bodies, offers, header)


def _resource_of(requirements: Requirements) -> version2.Resource:
    return version2.Resource(requirements.resource, requirements.description, requirements.mime_type)


def client_warnings(gate: PayGate, challenges: Iterable[Challenge]) -> list[JsonObject]:
    """Tell an owner what clients of version 2 make of this gate, whose challenges these are (contract 10.1)."""
    warnings = []
    if gate.price_micro > _SPENT_MAX_MICRO:
        message = (
            f"clients of x402 version 2 pay at most {format_usdc(_SPENT_MAX_MICRO)} USDC at a time, unless they are "
            "told otherwise: sell fewer credits for less, or tell your buyers to raise that limit"
        )
        warnings.append({"field": "price", "message": message})
    whole = gate.description or gate.title
    shown = min((version2.description_in(one.header) for one in challenges), key=len, default=whole)
    if shown != whole:
        message = (
            f"clients of x402 version 2 are shown {len(shown)} of its {len(whole)} characters, because it must fit "
            "into a header: say the most important first"
        )
        warnings.append({"field": "description" if gate.description else "title", "message": message})
    return warnings


def exhausted_body(challenge: Challenge, detail: JsonObject, profile: Profile, timestamp: str) -> bytes:
    """A 402 whose credits are used up: the body of an unpaid call and `errorDetail` (contract 4.3).

    `error` stays a string, so that an official client can pay again at once. Shapes A and B stay to the letter.
    """
    body = challenge.body(profile, timestamp)
    if profile is not Profile.SUPERSET:
        return body
    extra = json.dumps(detail, separators=(",", ":")).encode()
    return body[:-1] + b',"errorDetail":' + extra + b"}"
