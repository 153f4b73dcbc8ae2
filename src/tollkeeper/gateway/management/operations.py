"""The description of the gateway's management (specification 4.1, contract 2, 3, 8).

Calls of PayGates and downloads are described in `calls_described`, logins in `auth.operations`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tollkeeper.core.api.errors import Code
from tollkeeper.core.api.openapi import JSON, Bearer, Operation, ResponseSpec, ref
from tollkeeper.core.api.schemas import (
    BASE_UNITS,
    FLAG,
    IDEMPOTENCY_KEY,
    IF_NONE_MATCH,
    NETWORK,
    NETWORK_ASKED,
    OFFSET,
    PREFER_WAIT,
    TEXT,
    UNCHANGED,
    WALLET_ADDRESS,
    answered,
    header,
    in_path,
    limit,
    query,
    record,
)
from tollkeeper.core.limits import SEARCH_LENGTH
from tollkeeper.core.paygates.statistics import RequestOutcome
from tollkeeper.gateway.management.idempotency import UNGUESSABLE_LENGTH
from tollkeeper.gateway.management.schemas import RECEIPT_OF_VERSION_2, REQUIRED_IN_HEADER, SLUG

_TAG: Final = "paygates"
_FORM: Final = "multipart/form-data"
_ID: Final = in_path("gate_id", {"type": "integer", "minimum": 1, "maximum": 2**53 - 1})
_CALLER: Final = (Code.AUTH_REQUIRED, Code.INVALID_TOKEN, Code.FORBIDDEN, Code.UNAVAILABLE)
_OF_ONE: Final = (*_CALLER, Code.NOT_FOUND)
_FIELDS: Final = (
    Code.MISSING_PARAMETER,
    Code.INVALID_AMOUNT,
    Code.INVALID_ADDRESS,
    Code.INVALID_NETWORK,
    Code.PAYLOAD_TOO_LARGE,
)
_SHOWN: Final = {JSON: ref("ShownPayGate")}
_ONCE: Final = f"{IDEMPOTENCY_KEY.description} Without a login it has at least {UNGUESSABLE_LENGTH} characters."
_MINE: Final = {"gate_id": "$response.body#/id"}

CREATE: Final = Operation(
    id="createPayGate",
    method="post",
    path="/api/v1/paygates",
    tag=_TAG,
    is_limited=True,
    summary="Create a PayGate",
    description=(
        "A file is sold by sending it as a form, with a bearer. Without an owner the answer has a managementToken, and "
        "under headerAuthMode hmac a secret: each is shown once."
    ),
    parameters=(replace(IDEMPOTENCY_KEY, description=_ONCE),),
    request={JSON: ref("CreatePayGate"), _FORM: ref("CreateFilePayGate")},
    bearer=Bearer.OPTIONAL,
    answers={201: ResponseSpec("The PayGate", _SHOWN)},
    codes=(*_FIELDS, *_CALLER, Code.CONFLICT),
    links={
        **dict.fromkeys(
            (
                "readPayGate",
                "updatePayGate",
                "claimPayGate",
                "replaceSecret",
                "payGateStatistics",
                "payGateRequests",
                "deletePayGate",
            ),
            _MINE,
        ),
        "callByGet": {"slug": "$response.body#/slug"},
        "callByPost": {"slug": "$response.body#/slug"},
    },
)
PAGE: Final = Operation(
    id="listPayGates",
    method="get",
    path="/api/v1/paygates",
    tag=_TAG,
    is_limited=True,
    summary="List your PayGates",
    description="Newest first. Without a login the filters count for nothing.",
    parameters=(
        limit(),
        OFFSET,
        query("q", {"type": "string", "maxLength": SEARCH_LENGTH}, "A part of title or slug"),
        query("state", {"type": "string", "enum": ["enabled", "disabled"]}),
        IF_NONE_MATCH,
    ),
    bearer=Bearer.OPTIONAL,
    answers={200: ResponseSpec("A page", {JSON: ref("PayGates")}), 304: UNCHANGED},
    codes=_CALLER,
)
READ: Final = Operation(
    id="readPayGate",
    method="get",
    path="/api/v1/paygates/{gate_id}",
    tag=_TAG,
    is_limited=True,
    summary="Read a PayGate",
    parameters=(_ID, IF_NONE_MATCH),
    bearer=Bearer.OPTIONAL,
    answers={200: ResponseSpec("The PayGate", _SHOWN), 304: UNCHANGED},
    codes=_OF_ONE,
)
UPDATE: Final = Operation(
    id="updatePayGate",
    method="put",
    path="/api/v1/paygates/{gate_id}",
    tag=_TAG,
    is_limited=True,
    summary="Update a PayGate",
    description="Any subset of the fields, all or nothing; as a form with a file, that takes the former one's place.",
    parameters=(_ID,),
    request={JSON: ref("UpdatePayGate"), _FORM: ref("UpdateFilePayGate")},
    bearer=Bearer.OPTIONAL,
    answers={200: ResponseSpec("The PayGate", _SHOWN)},
    codes=(*_FIELDS, *_OF_ONE, Code.CONFLICT),
)
CLAIM: Final = Operation(
    id="claimPayGate",
    method="post",
    path="/api/v1/paygates/{gate_id}/claim",
    tag=_TAG,
    is_limited=True,
    summary="Claim a PayGate that has no owner",
    parameters=(_ID,),
    request={JSON: record({"managementToken": {"type": ["string", "null"]}}, optional=["managementToken"])},
    request_required=False,
    bearer=Bearer.REQUIRED,
    answers={200: ResponseSpec("The PayGate, now yours", _SHOWN)},
    codes=(*_OF_ONE, Code.CONFLICT, Code.PAYLOAD_TOO_LARGE),
)
REPLACE_SECRET: Final = Operation(
    id="replaceSecret",
    method="post",
    path="/api/v1/paygates/{gate_id}/secret",
    tag=_TAG,
    is_limited=True,
    summary="Replace a PayGate's HMAC secret",
    description="Shown once. The former one signs too for a day.",
    parameters=(_ID,),
    bearer=Bearer.OPTIONAL,
    answers={200: ResponseSpec("The secret", {JSON: ref("Secret")})},
    codes=(*_OF_ONE, Code.CONFLICT),
)
DELETE: Final = Operation(
    id="deletePayGate",
    method="delete",
    path="/api/v1/paygates/{gate_id}",
    tag=_TAG,
    is_limited=True,
    summary="Delete a PayGate",
    description="Bought credits are void; the answer says how many.",
    parameters=(_ID,),
    bearer=Bearer.OPTIONAL,
    answers={200: ResponseSpec("Deleted", {JSON: ref("Deleted")})},
    codes=_OF_ONE,
)

_MOMENT: Final = {"type": "string", "anyOf": [{"format": "date-time"}, {"format": "date"}]}
_SPAN: Final = (
    query("from", _MOMENT, "ISO 8601 time or day; seven days ago where it is left out"),
    query("to", _MOMENT, "ISO 8601 time or day; now where it is left out"),
    query("bucket", {"type": "string", "enum": ["hour", "day"], "default": "day"}),
    IF_NONE_MATCH,
)
_STATISTICS: Final[dict[int | str, ResponseSpec]] = {
    200: ResponseSpec("What happened", {JSON: ref("Statistics")}),
    304: UNCHANGED,
}
ALL_STATISTICS: Final = Operation(
    id="statistics",
    method="get",
    path="/api/v1/stats",
    tag="statistics",
    is_limited=True,
    summary="Statistics of all your PayGates",
    parameters=_SPAN,
    bearer=Bearer.REQUIRED,
    answers=_STATISTICS,
    codes=_CALLER,
)
GATE_STATISTICS: Final = Operation(
    id="payGateStatistics",
    method="get",
    path="/api/v1/paygates/{gate_id}/stats",
    tag="statistics",
    is_limited=True,
    summary="Statistics of a PayGate",
    parameters=(_ID, *_SPAN),
    bearer=Bearer.OPTIONAL,
    answers=_STATISTICS,
    codes=_OF_ONE,
)
REQUESTS: Final = Operation(
    id="payGateRequests",
    method="get",
    path="/api/v1/paygates/{gate_id}/requests",
    tag="statistics",
    is_limited=True,
    summary="The requests at a PayGate",
    description="Newest first.",
    parameters=(
        _ID,
        limit(),
        OFFSET,
        query("outcome", {"type": "string", "enum": [outcome.value for outcome in RequestOutcome]}),
        IF_NONE_MATCH,
    ),
    bearer=Bearer.OPTIONAL,
    answers={200: ResponseSpec("A page", {JSON: ref("Requests")}), 304: UNCHANGED},
    codes=_OF_ONE,
)
CREDITS: Final = Operation(
    id="credits",
    method="get",
    path="/api/v1/credits",
    tag="buying",
    is_limited=True,
    summary="Credits that a payment, a token or a wallet holds",
    description="Free. A bearer of the payer is told the credit tokens too. Newest first.",
    parameters=(
        limit(),
        OFFSET,
        header("X-Payment", "The payment that bought; PAYMENT-SIGNATURE is taken as well."),
        header("X-Credit-Token"),
        IF_NONE_MATCH,
    ),
    bearer=Bearer.OPTIONAL,
    answers={200: ResponseSpec("The credits", {JSON: ref("Credits")}), 304: UNCHANGED},
    codes=(*_CALLER, Code.CREDIT_TOKEN_REQUIRED),
    also={400: (Code.PAYMENT_INVALID, Code.INVALID_NETWORK, Code.INVALID_SIGNATURE)},
)
UNSIGNED_PAYMENT: Final = Operation(
    id="unsignedPayment",
    method="post",
    path="/api/v1/solana/transactions",
    tag="buying",
    is_limited=True,
    summary="Make a payment on Solana for a wallet to sign",
    description="Of what the PayGate asks for. Nothing is charged before it is signed and shown to the PayGate.",
    request={JSON: record({"slug": SLUG, "network": NETWORK_ASKED, "payer": WALLET_ADDRESS})},
    answers={
        200: ResponseSpec("The transaction, in base64", {JSON: answered({"network": NETWORK, "transaction": TEXT})}),
    },
    codes=(
        Code.MISSING_PARAMETER,
        Code.INVALID_NETWORK,
        Code.INVALID_ADDRESS,
        Code.FORBIDDEN,
        Code.NOT_FOUND,
        Code.UNAVAILABLE,
        Code.PAYLOAD_TOO_LARGE,
    ),
)
TRANSFER: Final = Operation(
    id="transfer",
    method="post",
    path="/api/v1/transfer",
    tag="buying",
    is_limited=True,
    summary="Direct transfer of USDC",
    description=(
        "Without a payment: a 402 that asks for this very transfer. With one that pays it: the transfer is made, once, "
        "and the same request sent again is told what became of it."
    ),
    parameters=(
        header("PAYMENT-SIGNATURE", "Base64 of the x402 payment: of version 2, as today's clients send it."),
        header("X-Payment", "The same of version 1. In either header a payment of either version is taken."),
        header("Accept", schema=TEXT),
        PREFER_WAIT,
    ),
    request={
        JSON: record(
            {
                "network": NETWORK_ASKED,
                "signature": {"type": "string", "pattern": "^0x([0-9a-fA-F]{2})+$"},
                "authorization": ref("Authorization"),
                "transaction": {"type": "string", "description": "On Solana, in place of the two; base64"},
                "recipient": {
                    **WALLET_ADDRESS,
                    "description": "Who is paid, as was signed; on Solana the owner",
                },
                "amount": {**BASE_UNITS, "description": "What is transferred, as it was signed"},
                "confirm": FLAG,
            },
            optional=["signature", "authorization", "transaction", "recipient", "amount", "confirm"],
        )
        | {
            "oneOf": [
                {"required": ["signature", "authorization"], "not": {"required": ["transaction"]}},
                {"required": ["transaction"], "not": {"required": ["authorization"]}},
            ]
        }
    },
    answers={
        200: ResponseSpec(
            "What became of it",
            {JSON: ref("Settled")},
            {"X-Payment-Response": TEXT},
            may_have={"PAYMENT-RESPONSE": RECEIPT_OF_VERSION_2},
        ),
        402: ResponseSpec(
            "Payment required",
            {JSON: {"anyOf": [ref("Challenge"), ref("ShapeA"), ref("ShapeB")]}},
            REQUIRED_IN_HEADER,
        ),
    },
    refusal_headers={503: {"PAYMENT-RESPONSE": RECEIPT_OF_VERSION_2}},
    codes=(
        Code.MISSING_PARAMETER,
        Code.INVALID_AMOUNT,
        Code.INVALID_ADDRESS,
        Code.INVALID_NETWORK,
        Code.PAYLOAD_TOO_LARGE,
        Code.FORBIDDEN,
        Code.UNAVAILABLE,
        Code.SETTLEMENT_PENDING,
    ),
    also={
        400: (
            Code.PAYMENT_INVALID,
            Code.INVALID_SIGNATURE,
            Code.INSUFFICIENT_FUNDS,
            Code.INSUFFICIENT_AMOUNT,
            Code.NONCE_ALREADY_USED,
            Code.PAYMENT_EXPIRED,
        )
    },
)
HEALTH: Final = Operation(
    id="healthz",
    method="get",
    path="/healthz",
    tag="operation",
    summary="Is the process alive?",
    answers={200: ResponseSpec("It is", {JSON: ref("Status")})},
)
READY: Final = Operation(
    id="readyz",
    method="get",
    path="/readyz",
    tag="operation",
    summary="Do the database and the hub answer?",
    answers={200: ResponseSpec("They do", {JSON: ref("Ready")})},
    codes=(Code.UNAVAILABLE,),
)
