"""Table of a PayGate's calls and of downloads (specification 1, 2.2; contract 4).

They are not the management's to route: the listener gives calls to `flow`, and `files` answers downloads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final, Literal

from msgspec import Meta, Raw

from tollkeeper.core.api.bodies import HeaderText, NumberText
from tollkeeper.core.api.errors import Code
from tollkeeper.core.api.openapi import JSON, Bearer, Operation, ResponseSpec, header, in_path, query
from tollkeeper.core.networks import NetworkAsked
from tollkeeper.core.paygates.fields import METHODS
from tollkeeper.gateway.management.bodies import REQUIRED_IN_HEADER, BoughtFile, ReceiptOfVersion2, RefusedPayment, Slug
from tollkeeper.gateway.management.operations import CHALLENGE, PAYMENT_HEADERS, REFUSED_PAYMENTS

_CALL_DESCRIPTION: Final = (
    "The method is one that the PayGate allows; a path below the slug is where it allows that. Query and body go to "
    "the target, and its answer comes back with X-Payment-Response, X-Credits-Remaining, X-Credits-Total and "
    "X-Purchase-Id. A file PayGate answers with a link to download from. A browser that opens it (GET, Accept with "
    "text/html, User-Agent with Mozilla) gets a page to pay on, with the same status and headers."
)
_CALL_CODES: Final = (
    *(Code.NOT_FOUND, Code.METHOD_NOT_ALLOWED, Code.RATE_LIMITED, Code.INVALID_NETWORK, Code.PAYLOAD_TOO_LARGE),
    *(Code.AUTH_REQUIRED, Code.INVALID_TOKEN, Code.FORBIDDEN, Code.CREDIT_TOKEN_REQUIRED),
    *(Code.UPSTREAM_TIMEOUT, Code.UPSTREAM_TOO_LARGE, Code.UPSTREAM_UNREACHABLE),
    *(Code.UPSTREAM_INVALID, Code.UPSTREAM_BLOCKED, Code.UNAVAILABLE, Code.SETTLEMENT_PENDING),
)

# The receipt (contract 4.6): beside the answer to whatever used a credit, also where the body was found wrong after it.
_RECEIPT: Final[dict[str, object]] = {
    "X-Payment-Response": Annotated[
        str, Meta(description="Base64 of JSON: success, transaction, network, payer, amount, purchaseId.")
    ],
    "X-Credits-Remaining": NumberText,
    "X-Credits-Total": NumberText,
    "X-Purchase-Id": str,
    "X-Credit-Token": Annotated[HeaderText, Meta(description="Told to the request that bought, and to no other.")],
    "PAYMENT-RESPONSE": ReceiptOfVersion2,
}
_SPENDS: Final = " Where its payer holds credits, it spends one and is not settled."


def _call(method: str) -> Operation:
    by_version_2, by_version_1 = PAYMENT_HEADERS
    exhausted = "Payment required; errorDetail says CREDITS_EXHAUSTED where the payment's credits are used up."
    return Operation(
        f"callBy{method.capitalize()}",
        f"{method.lower()} /{{slug}}",
        "Call a PayGate",
        tag="buying",
        is_limited=True,
        is_page=method == "GET",
        description=_CALL_DESCRIPTION,
        parameters=(
            in_path("slug", Slug),
            replace(by_version_2, description=by_version_2.description + _SPENDS),
            by_version_1,
            header("X-Credit-Token", "In place of the payment that bought."),
            header(
                "X-Credits", "buy: more is bought, though a payment of version 2 would spend a credit that is held."
            ),
            header("X-Payment-Network", "On which network the 402 shall ask.", NetworkAsked),
        ),
        request={} if method in {"GET", "HEAD", "OPTIONS"} else {"*/*": Raw},
        request_required=False,
        bearer=Bearer.OPTIONAL,
        answers={
            "default": ResponseSpec("The target's own answer", {"*/*": Raw}, may_have=_RECEIPT),
            200: ResponseSpec(
                "The target's own answer, or a link to what a file PayGate sold",
                {JSON: {"anyOf": [BoughtFile, {}]}, "*/*": Raw},
                may_have=_RECEIPT,
            ),
            402: replace(CHALLENGE, description=exhausted, may_have=_RECEIPT),
        },
        codes=_CALL_CODES,
        also={402: (*REFUSED_PAYMENTS, Code.INVALID_NETWORK)},
        refusal_bodies={402: RefusedPayment},
        refusal_headers={
            **dict.fromkeys(range(400, 600), _RECEIPT),
            402: {**_RECEIPT, **REQUIRED_IN_HEADER},
        },  # the target may choose any of these statuses too
    )


def _download(method: str) -> Operation:
    content: dict[str, object] = {} if method == "head" else {"application/octet-stream": Raw}
    attachment = Annotated[str, Meta(pattern="^attachment")]
    own = {"ETag": str, "Accept-Ranges": Literal["bytes"], "Content-Disposition": attachment}
    kept = {"ETag": str, "Accept-Ranges": str}
    part = Annotated[str, Meta(pattern=r"^bytes ([0-9]+-[0-9]+|\*)/[0-9]+$")]
    return Operation(
        f"downloadBy{method.capitalize()}",
        f"{method} /files/{{file_id}}",
        "Download what a file PayGate sold",
        tag="buying",
        description="The link comes with the answer to the call; whoever has it may download while it is in force.",
        parameters=(
            in_path("file_id", str),
            query("purchase", str, required=True),
            query("expires", str, required=True),
            query("call", str, required=True),
            query("signature", str, required=True),
            header("Range", "One part; several are answered with the whole.", str),
            header("If-Range", "A part only of the file with this ETag, else the whole.", str),
            header("If-Match", "The file with one of these ETags only.", str),
        ),
        answers={
            200: ResponseSpec("The file", content, own),
            206: ResponseSpec("A part of the file", content, {**own, "Content-Range": part}),
            304: ResponseSpec("The caller has it", headers=own),
        },
        codes=(Code.NOT_FOUND, Code.FORBIDDEN, Code.METHOD_NOT_ALLOWED, Code.UNAVAILABLE),
        also=dict.fromkeys((412, 416), (Code.INVALID_PARAMETER,)),
        refusal_headers={412: kept, 416: {**kept, "Content-Range": part}},
    )


CALLS: Final = (*(_call(method) for method in METHODS), *(_download(method) for method in ("get", "head")))
