"""Table of the gateway's management (specification 4.1, contract 2, 3, 8).

Calls of PayGates and downloads are in `call_operations`, logins in `auth.operations`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Final

from msgspec import Meta

from tollkeeper.core.api.bodies import Settled, StatusBody, WalletAddress
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
    ResponseSpec,
    answer,
    header,
    in_path,
    limit,
    query,
    read,
)
from tollkeeper.core.limits import SEARCH_LENGTH
from tollkeeper.core.paygates.statistics import RequestOutcome
from tollkeeper.gateway.management import bodies, owner_bodies
from tollkeeper.gateway.management.idempotency import UNGUESSABLE_LENGTH

_paygates = partial(Operation, tag="paygates", is_limited=True, bearer=Bearer.OPTIONAL)
_statistics = partial(Operation, tag="statistics", is_limited=True, bearer=Bearer.OPTIONAL)
_buying = partial(Operation, tag="buying", is_limited=True)
_operation = partial(Operation, tag="operation")

_FORM: Final = "multipart/form-data"
_ID: Final = in_path("gate_id", Annotated[int, Meta(ge=1, le=2**53 - 1)])
_CALLER: Final = (Code.AUTH_REQUIRED, Code.INVALID_TOKEN, Code.FORBIDDEN, Code.UNAVAILABLE)
_OF_ONE: Final = (*_CALLER, Code.NOT_FOUND)
_ADDRESSES: Final = (Code.INVALID_ADDRESS, Code.INVALID_NETWORK, Code.PAYLOAD_TOO_LARGE)
_FIELDS: Final = (Code.MISSING_PARAMETER, Code.INVALID_AMOUNT, *_ADDRESSES)
_ONCE: Final = f"{IDEMPOTENCY_KEY.description} Without a login it has at least {UNGUESSABLE_LENGTH} characters."
_UPSTREAM: Final = (
    *(Code.UPSTREAM_TIMEOUT, Code.UPSTREAM_UNREACHABLE, Code.UPSTREAM_INVALID, Code.UPSTREAM_BLOCKED),
    Code.UPSTREAM_TOO_LARGE,
)
_ASKED_NEXT: Final = (
    *("readPayGate", "updatePayGate", "claimPayGate", "replaceSecret"),
    *("payGateStatistics", "payGateRequests", "testTarget", "deletePayGate"),
)

CREATE: Final = _paygates(
    "createPayGate",
    "post /api/v1/paygates",
    "Create a PayGate",
    description="A file is sold by sending it as a form, with a bearer. Without an owner the answer has a "
    "managementToken, and under headerAuthMode hmac a secret: each is shown once.",
    parameters=(replace(IDEMPOTENCY_KEY, description=_ONCE),),
    request={JSON: bodies.CreatePayGate, _FORM: bodies.CreateFilePayGate},
    answers=answer("The PayGate", bodies.ShownPayGate, 201),
    codes=(*_FIELDS, *_CALLER, Code.CONFLICT),
    links={
        **{name: {"gate_id": "$response.body#/id"} for name in _ASKED_NEXT},
        **{name: {"slug": "$response.body#/slug"} for name in ("callByGet", "callByPost")},
    },
)
PAGE: Final = _paygates(
    "listPayGates",
    "get /api/v1/paygates",
    "List your PayGates",
    description="Newest first. Without a login the filters count for nothing.",
    parameters=(
        limit(),
        OFFSET,
        query("q", Annotated[str, Meta(max_length=SEARCH_LENGTH)], "A part of title or slug"),
        query("state", {"type": "string", "enum": ["enabled", "disabled"]}),
    ),
    answers=read("A page", bodies.PayGatePage),
    codes=_CALLER,
)
READ: Final = _paygates(
    "readPayGate",
    "get /api/v1/paygates/{gate_id}",
    "Read a PayGate",
    parameters=(_ID,),
    answers=read("The PayGate", bodies.ShownPayGate),
    codes=_OF_ONE,
)
UPDATE: Final = _paygates(
    "updatePayGate",
    "put /api/v1/paygates/{gate_id}",
    "Update a PayGate",
    description="Any subset of the fields, all or nothing; as a form with a file, that takes the former one's place.",
    parameters=(_ID,),
    request={JSON: bodies.UpdatePayGate, _FORM: bodies.UpdateFilePayGate},
    answers=answer("The PayGate", bodies.ShownPayGate),
    codes=(*_FIELDS, *_OF_ONE, Code.CONFLICT),
)
CLAIM: Final = _paygates(
    "claimPayGate",
    "post /api/v1/paygates/{gate_id}/claim",
    "Claim a PayGate that has no owner",
    parameters=(_ID,),
    request={JSON: bodies.ClaimRequest},
    request_required=False,
    bearer=Bearer.REQUIRED,
    answers=answer("The PayGate, now yours", bodies.ShownPayGate),
    codes=(*_OF_ONE, Code.CONFLICT, Code.PAYLOAD_TOO_LARGE),
)
REPLACE_SECRET: Final = _paygates(
    "replaceSecret",
    "post /api/v1/paygates/{gate_id}/secret",
    "Replace a PayGate's HMAC secret",
    description="Shown once. The former one signs too for a day.",
    parameters=(_ID,),
    answers=answer("The secret", bodies.SecretBody),
    codes=(*_OF_ONE, Code.CONFLICT),
)
TEST: Final = _paygates(
    "testTarget",
    "post /api/v1/paygates/{gate_id}/test",
    "Ask a PayGate's target once",
    description="As a call without a body would, by the rules of every call. Nobody is charged. What the body leaves "
    "out is the PayGate's own.",
    parameters=(_ID,),
    request={JSON: owner_bodies.TargetTestRequest},
    request_required=False,
    answers=answer("What the target answered", owner_bodies.TargetTested),
    codes=(*_OF_ONE, *_UPSTREAM, Code.CONFLICT, Code.PAYLOAD_TOO_LARGE),
)
DELETE: Final = _paygates(
    "deletePayGate",
    "delete /api/v1/paygates/{gate_id}",
    "Delete a PayGate",
    description="Bought credits are void; the answer says how many.",
    parameters=(_ID,),
    answers=answer("Deleted", bodies.Deleted),
    codes=_OF_ONE,
)

_MOMENT: Final = {"type": "string", "anyOf": [{"format": "date-time"}, {"format": "date"}]}
_SPAN: Final = (
    query("from", _MOMENT, "ISO 8601 time or day; seven days ago where it is left out"),
    query("to", _MOMENT, "ISO 8601 time or day; now where it is left out"),
    query("bucket", {"type": "string", "enum": ["hour", "day"], "default": "day"}),
)
ALL_STATISTICS: Final = _statistics(
    "statistics",
    "get /api/v1/stats",
    "Statistics of all your PayGates",
    parameters=_SPAN,
    bearer=Bearer.REQUIRED,
    answers=read("What happened", bodies.StatisticsReport),
    codes=_CALLER,
)
GATE_STATISTICS: Final = _statistics(
    "payGateStatistics",
    "get /api/v1/paygates/{gate_id}/stats",
    "Statistics of a PayGate",
    parameters=(_ID, *_SPAN),
    answers=read("What happened", bodies.StatisticsReport),
    codes=_OF_ONE,
)
REQUESTS: Final = _statistics(
    "payGateRequests",
    "get /api/v1/paygates/{gate_id}/requests",
    "The requests at a PayGate",
    description="Newest first.",
    parameters=(_ID, limit(), OFFSET, query("outcome", RequestOutcome)),
    answers=read("A page", bodies.RequestPage),
    codes=_OF_ONE,
)
_WHEN: Final = (
    query("from", _MOMENT, "ISO 8601 time or day; thirty days ago where it is left out"),
    query("to", _MOMENT, "ISO 8601 time or day; now where it is left out"),
)
_OF_OWNER: Final = (
    query("paygate", Annotated[int, Meta(ge=1, le=2**53 - 1)], "The number of one PayGate"),
    query("payer", WalletAddress),
    *_WHEN,
)
_owned = partial(Operation, tag="statistics", is_limited=True, bearer=Bearer.REQUIRED)
_OWNED: Final = (*_CALLER, Code.NOT_FOUND, Code.INVALID_ADDRESS)
OWNER_REQUESTS: Final = _owned(
    "ownerRequests",
    "get /api/v1/requests",
    "The requests at all your PayGates",
    description="Newest first; as a table where Accept prefers text/csv.",
    parameters=(limit(), OFFSET, query("outcome", RequestOutcome), *_OF_OWNER),
    answers=read("A page", owner_bodies.OwnerRequestPage, CSV, ROWS_IN_ALL),
    codes=_OWNED,
)
OWNER_PAYMENTS: Final = _owned(
    "ownerPayments",
    "get /api/v1/payments",
    "The payments at all your PayGates",
    description="Newest first; as a table where Accept prefers text/csv.",
    parameters=(
        limit(),
        OFFSET,
        query("status", {"type": "string", "enum": ["pending", "paid", "failed", "void", "parked"]}),
        query("held", {"type": "string", "enum": ["true"]}, "Only those of which credits are left"),
        *_OF_OWNER,
    ),
    answers=read("A page", owner_bodies.OwnerPaymentPage, CSV, ROWS_IN_ALL),
    codes=_OWNED,
)
EVENTS: Final = _owned(
    "events",
    "get /api/v1/events",
    "What happens at your PayGates, as it happens",
    description="Server-sent events: sales, calls and failures, each as a request of `ownerRequests`. A stream ends "
    "after some seconds; asked again with the id of its last event, it goes on behind that.",
    parameters=(header("Last-Event-ID"), query("since", Annotated[int, Meta(ge=0, lt=2**47)], "Unix time in ms")),
    answers={200: ResponseSpec("The events", {"text/event-stream": str})},
    codes=(*_CALLER, Code.RATE_LIMITED),
)
CREDITS: Final = _buying(
    "credits",
    "get /api/v1/credits",
    "Credits that a payment, a token or a wallet holds",
    description="Free. A bearer of the payer is told the credit tokens too. Newest first.",
    parameters=(
        limit(),
        OFFSET,
        header("X-Payment", "The payment that bought; PAYMENT-SIGNATURE is taken as well."),
        header("X-Credit-Token"),
    ),
    bearer=Bearer.OPTIONAL,
    answers=read("The credits", bodies.CreditPage),
    codes=(*_CALLER, Code.CREDIT_TOKEN_REQUIRED),
    also={400: (Code.PAYMENT_INVALID, Code.INVALID_NETWORK, Code.INVALID_SIGNATURE)},
)
UNSIGNED_PAYMENT: Final = _buying(
    "unsignedPayment",
    "post /api/v1/solana/transactions",
    "Make a payment on Solana for a wallet to sign",
    description="Of what the PayGate asks for. Nothing is charged before it is signed and shown to the PayGate.",
    request={JSON: bodies.UnsignedPaymentAsked},
    answers=answer("The transaction, in base64", bodies.UnsignedPayment),
    codes=(Code.MISSING_PARAMETER, *_ADDRESSES, Code.FORBIDDEN, Code.NOT_FOUND, Code.UNAVAILABLE),
)
PAYMENT_HEADERS: Final = (
    header("PAYMENT-SIGNATURE", "Base64 of the x402 payment: of version 2, as today's clients send it."),
    header("X-Payment", "The same of version 1. In either header a payment of either version is taken."),
)
CHALLENGE: Final = ResponseSpec(
    "Payment required",
    {JSON: {"anyOf": [bodies.PaymentChallenge, bodies.ShapeA, bodies.ShapeB]}},
    bodies.REQUIRED_IN_HEADER,
)
REFUSED_PAYMENTS: Final = (
    *(Code.PAYMENT_INVALID, Code.INVALID_SIGNATURE, Code.INSUFFICIENT_FUNDS),
    *(Code.INSUFFICIENT_AMOUNT, Code.NONCE_ALREADY_USED, Code.PAYMENT_EXPIRED),
)
_RECEIPT: Final = {"PAYMENT-RESPONSE": bodies.ReceiptOfVersion2}
TRANSFER: Final = _buying(
    "transfer",
    "post /api/v1/transfer",
    "Direct transfer of USDC",
    description="Without a payment: a 402 that asks for this very transfer. With one that pays it: the transfer is "
    "made, once, and the same request sent again is told what became of it.",
    parameters=(*PAYMENT_HEADERS, header("Accept", schema=str), PREFER_WAIT),
    request={JSON: bodies.TransferBody},
    answers={
        200: ResponseSpec("What became of it", {JSON: Settled}, {"X-Payment-Response": str}, may_have=_RECEIPT),
        402: CHALLENGE,
    },
    refusal_headers={503: _RECEIPT},
    codes=(*_FIELDS, Code.FORBIDDEN, Code.UNAVAILABLE, Code.SETTLEMENT_PENDING),
    also={400: REFUSED_PAYMENTS},
)
HEALTH: Final = _operation(
    "healthz",
    "get /healthz",
    "Is the process alive?",
    description="As text/event-stream two events come, seconds apart: a proxy must pass the first one on at once.",
    answers={200: ResponseSpec("It is", {JSON: StatusBody, "text/event-stream": str})},
)
READY: Final = _operation(
    "readyz",
    "get /readyz",
    "Do the database and the hub answer?",
    answers=answer("They do", bodies.Ready),
    codes=(Code.UNAVAILABLE,),
)
PLAY_PAYMENT: Final = Operation(
    "playPayment",
    "post /api/v1/sandbox/pay",
    "Let the test buyer pay for one call of a PayGate",
    tag="sandbox",
    description="With play money; only a sandbox has it.",
    bearer=Bearer.OPTIONAL,
    is_limited=True,
    request={JSON: owner_bodies.PlayRequest},
    answers=answer("What the test buyer got", owner_bodies.PlayedCall),
    codes=(
        *(Code.MISSING_PARAMETER, Code.PAYLOAD_TOO_LARGE, Code.NOT_FOUND, Code.UNAVAILABLE),
        *(Code.AUTH_REQUIRED, Code.INVALID_TOKEN, Code.FORBIDDEN),
    ),
)
