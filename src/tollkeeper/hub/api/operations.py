"""Table of the hub's endpoints (specification 4.3, 4.4; contract 5, 7). Logins are in `auth.operations`."""

from __future__ import annotations

from functools import partial
from typing import Final

from tollkeeper.core.api.bodies import AnyObject, EvmAddress, Settled, StatusBody
from tollkeeper.core.api.errors import Code
from tollkeeper.core.api.openapi import (
    CSV,
    IDEMPOTENCY_KEY,
    JSON,
    OFFSET,
    PREFER_WAIT,
    ROWS_IN_ALL,
    Bearer,
    Operation,
    answer,
    in_path,
    limit,
    query,
    read,
)
from tollkeeper.core.networks import NetworkAsked
from tollkeeper.hub.api import bodies

_x402 = partial(Operation, tag="x402")
_history = partial(Operation, tag="history")
_operation = partial(Operation, tag="operation")

_UNREADABLE: Final = (Code.MISSING_PARAMETER, Code.INVALID_ADDRESS, Code.INVALID_AMOUNT, Code.PAYLOAD_TOO_LARGE)
_NOT_NOW: Final = (Code.CONFLICT, Code.UNAVAILABLE, Code.SETTLEMENT_PENDING)
# A web page of an origin that the settings do not name, under /api.
IN_FRONT: Final = (Code.FORBIDDEN,)
_BEARER: Final = (Code.AUTH_REQUIRED, Code.INVALID_TOKEN)

SUPPORTED: Final = _x402(
    "supported",
    "get /supported",
    "What can be paid here",
    answers=read("Kinds of payment: version 2's, then version 1's, one per network name", bodies.SupportedKinds),
)
VERIFY: Final = _x402(
    "verify",
    "post /verify",
    "Would this payment settle now?",
    parameters=(query("explain", str, "true: every check is listed."),),
    request={JSON: bodies.settlement_request({})},
    answers=answer("The verdict, with a reason", bodies.ShownVerdict),
    codes=(*_UNREADABLE, Code.UNAVAILABLE),
)
SETTLE: Final = _x402(
    "settle",
    "post /settle",
    "Settle a payment, once",
    description="confirm: wait until it is on the chain. A gateway's signature (RFC 9421) lets purchaseData in. A "
    "request of version 2 is held for up to 50 s; an outcome that is not known by then is `settlement_pending`, with "
    "the transaction: ask once more with the same body.",
    parameters=(IDEMPOTENCY_KEY, PREFER_WAIT),
    request={
        JSON: bodies.settlement_request(
            {"confirm": bool | None, "useDbId": bool | None, "purchaseData": AnyObject | None}
        )
    },
    answers=answer("What became of it", {"anyOf": [Settled, bodies.PendingSettlement]}),
    codes=(*_UNREADABLE, Code.AUTH_REQUIRED, Code.INVALID_SIGNATURE, *_NOT_NOW),
)
TRANSFER: Final = _x402(
    "transfer",
    "post /transfer",
    "Carry out a signed authorization or transaction, to anybody",
    description="amount and recipient are required on Solana.",
    parameters=(IDEMPOTENCY_KEY, PREFER_WAIT),
    request={JSON: bodies.TransferOrdered},
    answers=answer("What became of it", Settled),
    codes=(*_UNREADABLE, Code.INVALID_NETWORK, Code.INVALID_SIGNATURE, *_NOT_NOW),
    also={
        400: (
            *(Code.PAYMENT_INVALID, Code.INVALID_SIGNATURE, Code.INSUFFICIENT_FUNDS),
            *(Code.INSUFFICIENT_AMOUNT, Code.NONCE_ALREADY_USED, Code.PAYMENT_EXPIRED),
        )
    },
)
STANDING: Final = _x402(
    "standing",
    "post /standing",
    "Is a payment unused that is not to be settled?",
    description="By its identity alone, so that a gateway need not show a payer's proof. moment: Unix seconds of the "
    "latest block, on Solana the height of the latest finalized one; last: until which height it may be executed, "
    "else 0. nonce: on Solana the hash of its message (hex), and blockhash is required.",
    request={JSON: bodies.StandingAsked},
    answers=answer("How it stands", bodies.PaymentStanding),
    codes=(*_UNREADABLE, Code.INVALID_NETWORK, Code.UNAVAILABLE),
)
HOT: Final = (SUPPORTED, VERIFY, SETTLE, TRANSFER, STANDING)

HISTORY: Final = _history(
    "history",
    "get /api/v1/history",
    "Transactions of the current user's wallet",
    description="Newest first; as a table where Accept prefers text/csv.",
    parameters=(
        limit(required=True),
        OFFSET,
        query("network", NetworkAsked),
        query("role", {"type": "string", "enum": ["signer", "recipient"]}),
    ),
    bearer=Bearer.REQUIRED,
    answers=read("A page", bodies.HistoryPage, CSV, ROWS_IN_ALL),
    codes=(Code.MISSING_PARAMETER, Code.INVALID_NETWORK, *_BEARER),
    links={"transaction": {"settlement_id": "$response.body#/history/0/id"}},
)
TRANSACTION: Final = _history(
    "transaction",
    "get /api/v1/history/{settlement_id}",
    "One transaction, for its signer or recipient",
    parameters=(in_path("settlement_id", str),),
    bearer=Bearer.REQUIRED,
    answers=read("The transaction", bodies.OneTransaction, CSV, ROWS_IN_ALL),
    codes=(Code.NOT_FOUND, *_BEARER),
)
PAYMENT: Final = _history(
    "payment",
    "get /payments/{network}/{payer}/{nonce}",
    "The public status of a payment",
    description="Of the newest, where the network's asset was changed and the nonce used with both, and none is named.",
    parameters=(
        in_path("network", NetworkAsked),
        in_path("payer", str),
        in_path("nonce", str),
        query("asset", EvmAddress),
    ),
    answers=read("Its status", bodies.PaymentStatusBody),
    codes=(Code.INVALID_PARAMETER, Code.INVALID_NETWORK, Code.NOT_FOUND, Code.UNAVAILABLE),
)
NAMED_PAYMENT: Final = _history(
    "namedPayment",
    "get /payments/{network}/{name}",
    "The public status of a payment on Solana",
    description="By the hash of its message (hex), which is the payment's identity, or by the payer's signature that "
    "it was settled with (base58). Of several signatures that a payer made of one message only that one is a name: no "
    "signature shows by itself which message it is of.",
    parameters=(in_path("network", NetworkAsked), in_path("name", str)),
    answers=read("Its status", bodies.PaymentStatusBody),
    codes=(Code.INVALID_NETWORK, Code.NOT_FOUND, Code.UNAVAILABLE),
)
HEALTH: Final = _operation("healthz", "get /healthz", "Is the process alive?", answers=answer("It is", StatusBody))
READY: Final = _operation(
    "readyz",
    "get /readyz",
    "Do the database and a node of each network answer?",
    answers=answer("They do", bodies.HubReady),
    codes=(Code.UNAVAILABLE,),
)
