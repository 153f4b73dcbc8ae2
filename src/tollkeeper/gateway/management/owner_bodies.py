"""Bodies of an owner's lists, of a test of a target, and of a payment by the test buyer (contract 11)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from tollkeeper.core.api.bodies import AnswerBody, Body, Count, Pagination, Price, ShownAddress, Time
from tollkeeper.core.networks import NetworkName
from tollkeeper.gateway.management.bodies import Method, RequestRow, TargetHeaders, TargetUrl


class OwnerRequest(RequestRow):
    """A request at one of the owner's gates; the last five are of a call with a purchase."""

    paygate_id: Count
    slug: str
    title: str
    at_ms: Annotated[Count, Meta(description="Unix time in milliseconds.")]
    payer: ShownAddress | None
    network: NetworkName | None
    sale: Annotated[Price | None, Meta(description="What the request bought for; null where it bought nothing.")]
    claimed_ms: Annotated[Count | None, Meta(description="When its payment was verified.")]
    granted_ms: Annotated[Count | None, Meta(description="When its payment was settled.")]


class OwnerRequestPage(AnswerBody):
    """A page of requests at all gates of an owner."""

    data: list[OwnerRequest]
    pagination: Pagination


class OwnerPayment(Body):
    """A payment at one of the owner's gates."""

    id: str
    paygate_id: Count
    slug: str
    title: str
    status: Literal["pending", "paid", "failed", "void", "parked"]
    failure: str | None
    network: NetworkName
    payer: ShownAddress
    amount: Price
    price: Price
    credits: Count
    remaining: Count | None
    expires_at: Time | None
    transaction: str | None
    created_at: Time
    paid_at: Time | None
    updated_at: Time


class OwnerPaymentPage(AnswerBody):
    """A page of payments at all gates of an owner."""

    data: list[OwnerPayment]
    pagination: Pagination


class TargetTestRequest(Body, forbid_unknown_fields=True):
    """A target to test in place of the gate's own."""

    target_url: TargetUrl | UnsetType = UNSET
    method: Method | UnsetType = UNSET
    target_headers: TargetHeaders | UnsetType = UNSET


class TargetTested(AnswerBody):
    """The answer of a target to a test."""

    status: Count
    content_type: str
    location: str
    size: Annotated[Count, Meta(description="Bytes that were read.")]
    is_cut: Annotated[bool, Meta(description="It is larger than what can be sold.")]
    duration_us: Count


class PlayRequest(Body):
    """A gate that the test buyer is to pay."""

    paygate_id: Annotated[int, Meta(ge=1, le=2**53 - 1)]


class PlayedCall(AnswerBody):
    """The answer that the test buyer got."""

    status: Count
    body: Annotated[str, Meta(description="Its first 2,000 characters.")]
    transaction: str | None
