"""Descriptions of the hub's endpoints (specification 4.3, 4.4; contract 5, 7). `auth.operations` describes logins."""

from __future__ import annotations

from typing import Final

from tollkeeper.core.api.errors import Code
from tollkeeper.core.api.openapi import JSON, Bearer, Operation, ResponseSpec, Schema, ref
from tollkeeper.core.api.schemas import (
    ANY_OBJECT,
    BASE_UNITS,
    CAIP2_NETWORK,
    COUNT,
    EVM_ADDRESS,
    FLAG,
    IDEMPOTENCY_KEY,
    IF_NONE_MATCH,
    NETWORK,
    NETWORK_ASKED,
    NUMBER_TEXT,
    OFFSET,
    PREFER_WAIT,
    SHOWN_ADDRESS,
    TEXT,
    TIME,
    UNCHANGED,
    WALLET_ADDRESS,
    answered,
    in_path,
    limit,
    listed,
    nullable,
    query,
    record,
)

_TAG: Final = "x402"
_SHORT: Final = {"type": "string", "maxLength": 2048}
_UNREADABLE: Final = (Code.MISSING_PARAMETER, Code.INVALID_ADDRESS, Code.INVALID_AMOUNT, Code.PAYLOAD_TOO_LARGE)
_REFUSED: Final = (
    Code.PAYMENT_INVALID,
    Code.INVALID_SIGNATURE,
    Code.INSUFFICIENT_FUNDS,
    Code.INSUFFICIENT_AMOUNT,
    Code.NONCE_ALREADY_USED,
    Code.PAYMENT_EXPIRED,
)
# A web page of an origin that the settings do not name, under /api.
IN_FRONT: Final = (Code.FORBIDDEN,)
_HISTORY: Final = (Code.AUTH_REQUIRED, Code.INVALID_TOKEN)
_OPTION: Final = {"confirm": nullable(FLAG), "useDbId": nullable(FLAG)}
_SETTLED: Final[dict[int | str, ResponseSpec]] = {200: ResponseSpec("What became of it", {JSON: ref("Settled")})}
_ASKED: Final = {
    "x402Version": {"type": "integer", "not": {"const": 2}},
    "paymentPayload": ref("PaymentPayload"),
    "paymentRequirements": ref("PaymentRequirements"),
}
_ASKED_IN_VERSION_2: Final = {
    "x402Version": {"const": 2},
    "paymentPayload": ref("PaymentPayloadV2"),
    "paymentRequirements": ref("PaymentRequirementsV2"),
}
_ASSET: Final = {"address": TEXT, "name": TEXT, "symbol": TEXT, "decimals": COUNT, "tokenProgram": TEXT}

_TRANSACTION: Final[dict[str, Schema]] = {
    "id": TEXT,
    "createdAt": TIME,
    "updatedAt": TIME,
    "signerAddress": SHOWN_ADDRESS,
    "amount": BASE_UNITS,
    "network": NETWORK,
    "chainId": nullable(COUNT),
    "transactionHash": nullable(TEXT),
    "status": {"enum": ["pending", "success", "failed"]},
    "error": nullable(TEXT),
    "type": {"enum": ["transfer", "purchase"]},
    "x402Data": ANY_OBJECT,
    "purchaseData": ANY_OBJECT,
}
SCHEMAS: Final[dict[str, Schema]] = {
    # What a scheme or network that is not ours sends may look like anything: it is refused by a reason, with a 200.
    "PaymentPayload": record(
        {
            "x402Version": {"type": "integer"},
            "scheme": _SHORT,
            "network": _SHORT,
        }
    )
    | {
        "anyOf": [
            record({"payload": {"anyOf": [ref("EvmPayload"), ref("SolanaPayload")]}}),
            {"properties": {"scheme": {"not": {"const": "exact"}}}},
            {"properties": {"network": {"not": NETWORK_ASKED}}},
        ]
    },
    "PaymentRequirements": record(
        {
            "scheme": _SHORT,
            "network": _SHORT,
            "maxAmountRequired": BASE_UNITS,
            "asset": _SHORT,
            "payTo": _SHORT,
            "resource": {},  # what takes no part is never a reason to refuse
            "description": {},
            "mimeType": {},
            "maxTimeoutSeconds": COUNT,
            "extra": {},
        },
        optional=["resource", "description", "mimeType", "maxTimeoutSeconds", "extra"],
    ),
    "PaymentPayloadV2": record({"x402Version": {"const": 2}, "accepted": record({"scheme": _SHORT, "network": _SHORT})})
    | {
        "anyOf": [
            record({"payload": {"anyOf": [ref("EvmPayload"), ref("SolanaPayload")]}}),
            {"properties": {"accepted": {"properties": {"scheme": {"not": {"const": "exact"}}}}}},
            {"properties": {"accepted": {"properties": {"network": {"not": CAIP2_NETWORK}}}}},
        ]
    },
    "PaymentRequirementsV2": record(
        {
            "scheme": _SHORT,
            "network": _SHORT,
            "amount": BASE_UNITS,
            "asset": _SHORT,
            "payTo": _SHORT,
            "maxTimeoutSeconds": nullable(COUNT),
            "extra": {},
        },
        optional=["maxTimeoutSeconds", "extra"],
    ),
    "Supported": answered(
        {
            "kinds": listed(
                record(
                    {
                        "x402Version": {"enum": [1, 2]},
                        "scheme": {"const": "exact"},
                        "network": {"anyOf": [NETWORK_ASKED, CAIP2_NETWORK]},
                        "assets": listed(record(_ASSET, ("tokenProgram",))),
                        "extra": ANY_OBJECT,
                    }
                )
            ),
            "extensions": listed(TEXT),
            "signers": {"type": "object", "additionalProperties": listed(TEXT)},
        }
    ),
    "Verdict": answered(
        {
            "isValid": FLAG,
            "invalidReason": nullable(TEXT),
            "payer": nullable(SHOWN_ADDRESS),
            "invalidMessage": TEXT,
            "details": ANY_OBJECT,
            "checks": listed(record({"name": TEXT, "ok": FLAG, "expected": {}, "actual": {}})),
            "transaction": TEXT,
        },
        optional=["invalidMessage", "details", "checks", "transaction"],
    ),
    "Pending": answered(
        {
            "success": {"const": False},
            "transaction": TEXT,
            "network": CAIP2_NETWORK,
            "amount": BASE_UNITS,
            "payer": SHOWN_ADDRESS,
            "errorReason": {"const": "settlement_pending"},
        }
    ),
    "Transaction": record(_TRANSACTION, optional=["purchaseData"]),
    "Standing": answered({"isUnused": FLAG, "moment": COUNT, "last": COUNT}),
    "OneTransaction": answered(_TRANSACTION, optional=["purchaseData"]),
    "History": answered(
        {"success": {"const": True}, "history": listed(ref("Transaction")), "pagination": ref("Pagination")}
    ),
    "PaymentStatus": answered(
        {
            "status": {"enum": ["pending", "success", "failed"]},
            "transaction": TEXT,
            "network": NETWORK,
            "amount": BASE_UNITS,
            "payer": SHOWN_ADDRESS,
            "payTo": SHOWN_ADDRESS,
            "updatedAt": TIME,
            "id": TEXT,
            "error": nullable(TEXT),
        }
    ),
}


def _asked(optional: Schema | None = None) -> Schema:
    """Return the schema of verify and settle. If the versions are not ours, or not one, the rest may have any form."""
    more = optional or {}
    versions: Schema = {
        "x402Version": {"type": "integer"},
        "paymentPayload": record({"x402Version": {"type": "integer"}}),
        "paymentRequirements": ANY_OBJECT,
    }
    other: Schema = {"x402Version": {"type": "integer", "not": {"enum": [1, 2]}}, **more}
    mixed: list[Schema] = [
        {
            "properties": {
                "x402Version": {"const": version},
                "paymentPayload": {"properties": {"x402Version": {"not": {"const": version}}}},
            }
        }
        for version in (1, 2)
    ]
    return {
        "anyOf": [
            record({**_ASKED, **more}, optional=[*more]),
            record({**_ASKED_IN_VERSION_2, **more}, optional=[*more]),
            record({**versions, **more}, optional=[*more]) | {"anyOf": mixed},
            record(other, optional=[*more]),
        ]
    }


SUPPORTED: Final = Operation(
    id="supported",
    method="get",
    path="/supported",
    tag=_TAG,
    summary="What can be paid here",
    parameters=(IF_NONE_MATCH,),
    answers={
        200: ResponseSpec(
            "Kinds of payment: version 2's, then version 1's, one per network name", {JSON: ref("Supported")}
        ),
        304: UNCHANGED,
    },
)
VERIFY: Final = Operation(
    id="verify",
    method="post",
    path="/verify",
    tag=_TAG,
    summary="Would this payment settle now?",
    parameters=(query("explain", TEXT, "true: every check is listed."),),
    request={JSON: _asked()},
    answers={200: ResponseSpec("The verdict, with a reason", {JSON: ref("Verdict")})},
    codes=(*_UNREADABLE, Code.UNAVAILABLE),
)
SETTLE: Final = Operation(
    id="settle",
    method="post",
    path="/settle",
    tag=_TAG,
    summary="Settle a payment, once",
    description=(
        "confirm: wait until it is on the chain. A gateway's signature (RFC 9421) lets purchaseData in. A request of "
        "version 2 is held for up to 50 s; an outcome that is not known by then is `settlement_pending`, with the "
        "transaction: ask once more with the same body."
    ),
    parameters=(IDEMPOTENCY_KEY, PREFER_WAIT),
    request={JSON: _asked({**_OPTION, "purchaseData": nullable(ANY_OBJECT)})},
    answers={200: ResponseSpec("What became of it", {JSON: {"anyOf": [ref("Settled"), ref("Pending")]}})},
    codes=(
        *_UNREADABLE,
        Code.AUTH_REQUIRED,
        Code.INVALID_SIGNATURE,
        Code.CONFLICT,
        Code.UNAVAILABLE,
        Code.SETTLEMENT_PENDING,
    ),
)
TRANSFER: Final = Operation(
    id="transfer",
    method="post",
    path="/transfer",
    tag=_TAG,
    summary="Carry out a signed authorization or transaction, to anybody",
    description="amount and recipient are required on Solana.",
    parameters=(IDEMPOTENCY_KEY, PREFER_WAIT),
    request={
        JSON: record(
            {
                "x402Version": {"const": 1},
                "network": NETWORK_ASKED,
                "payload": {"anyOf": [ref("EvmPayload"), ref("SolanaPayload")]},
                "asset": TEXT,
                "amount": nullable(BASE_UNITS),
                "recipient": nullable(TEXT),
                **_OPTION,
            },
            optional=["x402Version", "amount", "recipient", *_OPTION],
        )
    },
    answers=_SETTLED,
    codes=(
        *_UNREADABLE,
        Code.INVALID_NETWORK,
        Code.INVALID_SIGNATURE,
        Code.CONFLICT,
        Code.UNAVAILABLE,
        Code.SETTLEMENT_PENDING,
    ),
    also={400: _REFUSED},
)
STANDING: Final = Operation(
    id="standing",
    method="post",
    path="/standing",
    tag=_TAG,
    summary="Is a payment unused that is not to be settled?",
    description=(
        "By its identity alone, so that a gateway need not show a payer's proof. moment: Unix seconds of the "
        "latest block, on Solana the height of the latest finalized one; last: until which height it may be executed, "
        "else 0. nonce: on Solana the hash of its message (hex), and blockhash is required."
    ),
    request={
        JSON: record(
            {
                "network": NETWORK_ASKED,
                "asset": WALLET_ADDRESS,
                "payer": WALLET_ADDRESS,
                "nonce": TEXT,
                "blockhash": TEXT,
            },
            optional=["blockhash"],
        )
    },
    answers={200: ResponseSpec("How it stands", {JSON: ref("Standing")})},
    codes=(*_UNREADABLE, Code.INVALID_NETWORK, Code.UNAVAILABLE),
)
HOT: Final = (SUPPORTED, VERIFY, SETTLE, TRANSFER, STANDING)

_TABLE: Final = {"text/csv": TEXT}
_TABLES: Final = {"X-Total-Count": {**NUMBER_TEXT, "description": "Of a table: how many there are in all."}}
HISTORY: Final = Operation(
    id="history",
    method="get",
    path="/api/v1/history",
    tag="history",
    summary="Transactions of the current user's wallet",
    description="Newest first; as a table where Accept prefers text/csv.",
    parameters=(
        limit(required=True),
        OFFSET,
        query("network", NETWORK_ASKED),
        query("role", {"type": "string", "enum": ["signer", "recipient"]}),
        IF_NONE_MATCH,
    ),
    bearer=Bearer.REQUIRED,
    answers={200: ResponseSpec("A page", {JSON: ref("History"), **_TABLE}, may_have=_TABLES), 304: UNCHANGED},
    codes=(Code.MISSING_PARAMETER, Code.INVALID_NETWORK, *_HISTORY),
    links={"transaction": {"settlement_id": "$response.body#/history/0/id"}},
)
TRANSACTION: Final = Operation(
    id="transaction",
    method="get",
    path="/api/v1/history/{settlement_id}",
    tag="history",
    summary="One transaction, for its signer or recipient",
    parameters=(in_path("settlement_id", TEXT), IF_NONE_MATCH),
    bearer=Bearer.REQUIRED,
    answers={
        200: ResponseSpec("The transaction", {JSON: ref("OneTransaction"), **_TABLE}, may_have=_TABLES),
        304: UNCHANGED,
    },
    codes=(Code.NOT_FOUND, *_HISTORY),
)
_KNOWN: Final[dict[int | str, ResponseSpec]] = {
    200: ResponseSpec("Its status", {JSON: ref("PaymentStatus")}),
    304: UNCHANGED,
}
PAYMENT: Final = Operation(
    id="payment",
    method="get",
    path="/payments/{network}/{payer}/{nonce}",
    tag="history",
    summary="The public status of a payment",
    description="Of the newest, where the network's asset was changed and the nonce used with both, and none is named.",
    parameters=(
        in_path("network", NETWORK_ASKED),
        in_path("payer", TEXT),
        in_path("nonce", TEXT),
        query("asset", EVM_ADDRESS),
        IF_NONE_MATCH,
    ),
    answers=_KNOWN,
    codes=(Code.INVALID_PARAMETER, Code.INVALID_NETWORK, Code.NOT_FOUND, Code.UNAVAILABLE),
)
NAMED_PAYMENT: Final = Operation(
    id="namedPayment",
    method="get",
    path="/payments/{network}/{name}",
    tag="history",
    summary="The public status of a payment on Solana",
    description=(
        "By the hash of its message (hex), which is the payment's identity, or by the payer's signature that it was "
        "settled with (base58). Of several signatures that a payer made of one message only that one is a name: no "
        "signature shows by itself which message it is of."
    ),
    parameters=(in_path("network", NETWORK_ASKED), in_path("name", TEXT), IF_NONE_MATCH),
    answers=_KNOWN,
    codes=(Code.INVALID_NETWORK, Code.NOT_FOUND, Code.UNAVAILABLE),
)
_STATE: Final = {"status": TEXT}
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
    summary="Do the database and a node of each network answer?",
    answers={200: ResponseSpec("They do", {JSON: answered({**_STATE, "problems": listed(TEXT)})})},
    codes=(Code.UNAVAILABLE,),
)
