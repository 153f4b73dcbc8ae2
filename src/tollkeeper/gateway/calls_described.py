"""The description of a PayGate's calls and of downloads (specification 1, 2.2; contract 4).

They are not the management's to route: the listener gives calls to `flow`, and `files` answers downloads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tollkeeper.core.api.errors import Code
from tollkeeper.core.api.openapi import JSON, Bearer, Operation, ResponseSpec, Schema, ref
from tollkeeper.core.api.schemas import (
    HEADER_TEXT,
    IF_NONE_MATCH,
    NETWORK_ASKED,
    NUMBER_TEXT,
    TEXT,
    header,
    in_path,
    query,
)
from tollkeeper.core.paygates.fields import METHODS
from tollkeeper.gateway.management.schemas import RECEIPT_OF_VERSION_2, REQUIRED_IN_HEADER, SLUG

_CALL_DESCRIPTION: Final = (
    "The method is one that the PayGate allows; a path below the slug is where it allows that. Query and body go to "
    "the target, and its answer comes back with X-Payment-Response, X-Credits-Remaining, X-Credits-Total and "
    "X-Purchase-Id. A file PayGate answers with a link to download from. A browser that opens it (GET, Accept with "
    "text/html, User-Agent with Mozilla) gets a page to pay on, with the same status and headers."
)
_REFUSED: Final = (
    Code.PAYMENT_INVALID,
    Code.INVALID_SIGNATURE,
    Code.INSUFFICIENT_AMOUNT,
    Code.PAYMENT_EXPIRED,
    Code.INSUFFICIENT_FUNDS,
    Code.NONCE_ALREADY_USED,
    Code.INVALID_NETWORK,
)
_CALL_CODES: Final = (
    Code.NOT_FOUND,
    Code.METHOD_NOT_ALLOWED,
    Code.RATE_LIMITED,
    Code.INVALID_NETWORK,
    Code.PAYLOAD_TOO_LARGE,
    Code.AUTH_REQUIRED,
    Code.INVALID_TOKEN,
    Code.FORBIDDEN,
    Code.CREDIT_TOKEN_REQUIRED,
    Code.UPSTREAM_TIMEOUT,
    Code.UPSTREAM_TOO_LARGE,
    Code.UPSTREAM_UNREACHABLE,
    Code.UPSTREAM_INVALID,
    Code.UPSTREAM_BLOCKED,
    Code.UNAVAILABLE,
    Code.SETTLEMENT_PENDING,
)
_CHALLENGE: Final = ResponseSpec(
    "Payment required; errorDetail says CREDITS_EXHAUSTED where the payment's credits are used up.",
    {JSON: {"anyOf": [ref("Challenge"), ref("ShapeA"), ref("ShapeB")]}},
    REQUIRED_IN_HEADER,
)

# The receipt (contract 4.6): beside the answer to whatever used a credit, also where the body was found wrong after it.
_RECEIPT: Final[dict[str, Schema]] = {
    "X-Payment-Response": {
        **TEXT,
        "description": "Base64 of JSON: success, transaction, network, payer, amount, purchaseId.",
    },
    "X-Credits-Remaining": NUMBER_TEXT,
    "X-Credits-Total": NUMBER_TEXT,
    "X-Purchase-Id": TEXT,
    "X-Credit-Token": {**HEADER_TEXT, "description": "Told to the request that bought, and to no other."},
    "PAYMENT-RESPONSE": RECEIPT_OF_VERSION_2,
}


def _call(method: str) -> Operation:
    return Operation(
        id=f"callBy{method.capitalize()}",
        method=method.lower(),
        path="/{slug}",
        tag="buying",
        is_limited=True,
        is_page=method == "GET",
        summary="Call a PayGate",
        description=_CALL_DESCRIPTION,
        parameters=(
            in_path("slug", SLUG),
            header(
                "PAYMENT-SIGNATURE",
                "Base64 of the x402 payment: of version 2, as today's clients send it. Where its payer holds credits, "
                "it spends one and is not settled.",
            ),
            header("X-Payment", "The same of version 1. In either header a payment of either version is taken."),
            header("X-Credit-Token", "In place of the payment that bought."),
            header(
                "X-Credits", "buy: more is bought, though a payment of version 2 would spend a credit that is held."
            ),
            header("X-Payment-Network", "On which network the 402 shall ask.", {**NETWORK_ASKED}),
        ),
        request={} if method in {"GET", "HEAD", "OPTIONS"} else {"*/*": {}},
        request_required=False,
        bearer=Bearer.OPTIONAL,
        answers={
            "default": ResponseSpec("The target's own answer", {"*/*": {}}, may_have=_RECEIPT),
            200: ResponseSpec(
                "The target's own answer, or a link to what a file PayGate sold",
                {JSON: {"anyOf": [ref("Bought"), {}]}, "*/*": {}},
                may_have=_RECEIPT,
            ),
            402: replace(_CHALLENGE, may_have=_RECEIPT),
        },
        codes=_CALL_CODES,
        also={402: _REFUSED},
        refusal_schemas={402: "RefusedPayment"},
        refusal_headers={
            **dict.fromkeys(range(400, 600), _RECEIPT),
            402: {**_RECEIPT, **REQUIRED_IN_HEADER},
        },  # the target may choose any of these statuses too
    )


def _download(method: str) -> Operation:
    content: dict[str, Schema] = {} if method == "head" else {"application/octet-stream": {}}
    own = {
        "ETag": TEXT,
        "Accept-Ranges": {"const": "bytes"},
        "Content-Disposition": {**TEXT, "pattern": "^attachment"},
    }
    kept = {"ETag": TEXT, "Accept-Ranges": TEXT}
    part = {**TEXT, "pattern": r"^bytes ([0-9]+-[0-9]+|\*)/[0-9]+$"}
    return Operation(
        id=f"downloadBy{method.capitalize()}",
        method=method,
        path="/files/{file_id}",
        tag="buying",
        summary="Download what a file PayGate sold",
        description="The link comes with the answer to the call; whoever has it may download while it is in force.",
        parameters=(
            in_path("file_id", TEXT),
            query("purchase", TEXT, required=True),
            query("expires", TEXT, required=True),
            query("call", TEXT),
            query("signature", TEXT, required=True),
            header("Range", "One part; several are answered with the whole.", TEXT),
            header("If-Range", "A part only of the file with this ETag, else the whole.", TEXT),
            header("If-Match", "The file with one of these ETags only.", TEXT),
            IF_NONE_MATCH,
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
