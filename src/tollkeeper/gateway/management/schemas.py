"""JSON Schemas of PayGates, what they ask for and what they did (specification 2.1, 2.2; contract 2, 3.1, 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tollkeeper.core.api.errors import Code
from tollkeeper.core.api.openapi import ref
from tollkeeper.core.api.schemas import (
    ANY_OBJECT,
    BASE_UNITS,
    COUNT,
    FLAG,
    HEADER_TEXT,
    NETWORK,
    NETWORK_ASKED,
    PRICE,
    PRICE_ASKED,
    SHOWN_ADDRESS,
    TEXT,
    TIME,
    WALLET_ADDRESS,
    answered,
    listed,
    nullable,
    record,
)
from tollkeeper.core.limits import (
    ACCEPTS_MAX,
    CREDITS_EXPIRE_AFTER_MAX_SECONDS,
    CREDITS_MAX,
    DESCRIPTION_LENGTH,
    TARGET_HEADERS_MAX,
    TARGET_URL_LENGTH,
    TITLE_LENGTH,
)
from tollkeeper.core.paygates.fields import METHODS, CreditBinding, HeaderAuthMode, OnFailure
from tollkeeper.core.paygates.statistics import CALLS, RequestOutcome
from tollkeeper.core.x402.version2 import HEADER_LENGTH_MAX, PAYMENT_REQUIRED_HEADER

if TYPE_CHECKING:
    from tollkeeper.core.api.openapi import Schema

_METHOD: Final = "(" + "|".join("".join(f"[{one}{one.lower()}]" for one in name) for name in METHODS) + ")"
_LINES: Final = r"^[^\x00-\x08\x0b-\x1f\x7f]*$"
_PART: Final = "[A-Za-z0-9!#$&^_.+-]{1,127}"
SLUG: Final[Schema] = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{2,63}$"}
REQUIRED_IN_HEADER: Final[dict[str, Schema]] = {
    PAYMENT_REQUIRED_HEADER: {
        **HEADER_TEXT,
        "description": "What to pay, for clients of x402 version 2: base64 of JSON with x402Version, error, resource "
        f"and accepts; at most {HEADER_LENGTH_MAX} characters.",
    }
}
RECEIPT_OF_VERSION_2: Final[Schema] = {
    **HEADER_TEXT,
    "description": "Of a payment of x402 version 2: base64 of JSON with success, payer, transaction, network (CAIP-2); "
    "amount 0 where held credits were spent, errorReason where success is false.",
}
_SECONDS: Final = {
    "type": "integer",
    "minimum": 1,
    "maximum": CREDITS_EXPIRE_AFTER_MAX_SECONDS,
    "description": "seconds",
}
_SETTABLE: Final[dict[str, Any]] = {
    "price": {
        "description": "USDC. A number is taken where its text is such a decimal.",
        "anyOf": [PRICE_ASKED, {"type": "number", "exclusiveMinimum": 0, "maximum": 999_999_999_999}],
    },
    "credits": {"type": "integer", "minimum": 1, "maximum": CREDITS_MAX, "description": "Calls of one purchase"},
    "title": {"type": "string", "maxLength": TITLE_LENGTH, "pattern": _LINES},
    "description": {"type": "string", "maxLength": DESCRIPTION_LENGTH, "pattern": _LINES},
    "method": {"type": "string", "pattern": f"^ *{_METHOD} *(, *{_METHOD} *)*$"},
    "network": NETWORK_ASKED,
    "paymentAddress": WALLET_ADDRESS,
    "accepts": {
        "type": "array",
        "maxItems": ACCEPTS_MAX,
        "items": {
            **record({"network": NETWORK_ASKED, "paymentAddress": WALLET_ADDRESS}),
            "additionalProperties": False,
        },
    },
    "mimeType": {"type": "string", "pattern": f"^{_PART}/{_PART}$"},
    "assumeValid": FLAG,
    "requireAuth": FLAG,
    "isEnabled": FLAG,
    "creditBinding": {"enum": [one.value for one in CreditBinding]},
    "creditsExpireAfter": nullable(_SECONDS),
    "payerProof": FLAG,
}
_OF_TARGETS: Final[dict[str, Any]] = {
    "targetUrl": {"type": "string", "format": "uri", "minLength": 1, "maxLength": TARGET_URL_LENGTH},
    "headerAuthMode": {"enum": [one.value for one in HeaderAuthMode]},
    "allowSubpaths": FLAG,
    "stream": FLAG,
    "onFailure": {"enum": [one.value for one in OnFailure]},
    "targetHeaders": {
        "type": "object",
        "maxProperties": TARGET_HEADERS_MAX,
        "additionalProperties": {"type": "string", "pattern": r"^([!-~]([\t -~]*[!-~])?)?$"},
        "description": "Sent to the target; the values are never shown again.",
    },
}
_FILE: Final[dict[str, Any]] = {"file": {"type": "string", "contentMediaType": "application/octet-stream"}}


def _closed(properties: dict[str, Any], required: tuple[str, ...] = ()) -> Schema:
    """A request whose unknown fields are refused, never ignored."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


_URL_FIELDS: Final = {**_SETTABLE, **_OF_TARGETS, "resourceType": {"const": "url"}}
# A form has no null.
_FORM_FIELDS: Final = {
    **_SETTABLE,
    "price": PRICE_ASKED,
    "creditsExpireAfter": _SECONDS,
    **_FILE,
    "resourceType": {"const": "file"},
}

_CONTENT: Final = {"fileName": TEXT, "fileSize": COUNT, "contentType": TEXT, "sha256": TEXT}
_ONCE: Final = {
    "secret": TEXT,
    "keyId": TEXT,
    "managementToken": TEXT,
    "warnings": listed(record({"field": TEXT, "network": NETWORK, "message": TEXT}, optional=("network",))),
}
_PAYGATE: Final[dict[str, Any]] = {
    "id": COUNT,
    "slug": SLUG,
    "accessUrl": TEXT,
    "targetUrl": TEXT,
    "price": PRICE,
    "credits": COUNT,
    "method": TEXT,
    "title": TEXT,
    "description": TEXT,
    "assumeValid": FLAG,
    "requireAuth": FLAG,
    "paymentAddress": SHOWN_ADDRESS,
    "network": NETWORK,
    "accepts": listed(record({"network": NETWORK, "paymentAddress": SHOWN_ADDRESS})),
    "mimeType": TEXT,
    "isEnabled": FLAG,
    "headerAuthMode": _OF_TARGETS["headerAuthMode"],
    "creditBinding": _SETTABLE["creditBinding"],
    "onFailure": _OF_TARGETS["onFailure"],
    "creditsExpireAfter": nullable(COUNT),
    "payerProof": FLAG,
    "resourceType": {"enum": ["url", "file"]},
    "allowSubpaths": FLAG,
    "stream": FLAG,
    "targetHeaders": listed(TEXT),
    "ownerWallet": nullable(SHOWN_ADDRESS),
    "createdAt": TIME,
    "updatedAt": TIME,
    "counters": record({"challenges": COUNT, "purchases": COUNT, "calls": COUNT, "failures": COUNT, "revenue": PRICE}),
    **_CONTENT,
}
_TRUSTED: Final = {
    "trusted": record({"open": COUNT, "openAmount": PRICE, "failed": COUNT, "failedAmount": PRICE}),
}
_LATENCY: Final = nullable(COUNT)
_SUMS: Final[dict[str, Any]] = {
    "revenue": PRICE,
    "purchases": COUNT,
    "calls": record({"total": COUNT, **{outcome.value: COUNT for outcome in CALLS}}),
    "challenges": COUNT,
    "refusals": COUNT,
    "latencyUs": record({"p50": _LATENCY, "p95": _LATENCY, "p99": _LATENCY}),
}
_ASKED_FOR: Final[dict[str, Any]] = {
    "x402Version": {"const": 1},
    "accepts": listed(ref("AcceptedPayment")),
    "paymentRequired": ref("PaymentRequired"),
    "x402": ref("X402"),
}

SCHEMAS: Final[dict[str, Schema]] = {
    "CreatePayGate": _closed(
        {**_URL_FIELDS, "slug": nullable(SLUG), "paymentAddress": nullable(WALLET_ADDRESS)}, ("price", "targetUrl")
    ),
    "CreateFilePayGate": _closed({**_FORM_FIELDS, "slug": SLUG}, ("price", "resourceType", "file")),
    "UpdatePayGate": {
        **_closed({**_SETTABLE, **_OF_TARGETS, "resourceType": {"enum": ["url", "file"]}}),
        "minProperties": 1,
    },
    "UpdateFilePayGate": {**_closed(_FORM_FIELDS), "minProperties": 1},
    "PayGate": record(_PAYGATE, optional=_CONTENT),
    "ShownPayGate": answered({**_PAYGATE, **_ONCE, **_TRUSTED}, optional=[*_CONTENT, *_ONCE, *_TRUSTED]),
    "PayGates": answered({"data": listed(ref("PayGate")), "pagination": ref("Pagination")}),
    "Deleted": answered({"success": {"const": True}, "message": TEXT, "outstandingCredits": COUNT}),
    "Secret": answered({"secret": TEXT, "keyId": TEXT}),
    "Statistics": answered(
        {
            "from": TIME,
            "to": TIME,
            "bucket": {"enum": ["hour", "day"]},
            **_SUMS,
            "outstanding": record({"credits": COUNT, "liability": PRICE}),
            "data": listed(record({"start": TIME, **_SUMS})),
        }
    ),
    "Requests": answered(
        {
            "data": listed(
                record(
                    {
                        "requestId": TEXT,
                        "at": TIME,
                        "method": TEXT,
                        "status": COUNT,
                        "outcome": {"enum": [outcome.value for outcome in RequestOutcome]},
                        "code": nullable({"enum": [code.value for code in Code]}),
                        "durationUs": COUNT,
                        "purchaseId": nullable(TEXT),
                    }
                )
            ),
            "pagination": ref("Pagination"),
            "notLogged": {**COUNT, "description": "So many requests of this time were counted and have no row."},
        }
    ),
    "Credits": answered(
        {
            "data": listed(
                record(
                    {
                        "slug": TEXT,
                        "purchaseId": TEXT,
                        "granted": COUNT,
                        "used": COUNT,
                        "remaining": COUNT,
                        "expiresAt": nullable(TIME),
                        "creditToken": TEXT,
                    },
                    optional=["creditToken"],
                )
            ),
            "pagination": ref("Pagination"),
        }
    ),
    "AcceptedPayment": record(
        {
            "scheme": {"const": "exact"},
            "network": TEXT,
            "maxAmountRequired": BASE_UNITS,
            "resource": TEXT,
            "description": TEXT,
            "mimeType": TEXT,
            "payTo": SHOWN_ADDRESS,
            "maxTimeoutSeconds": COUNT,
            "asset": SHOWN_ADDRESS,
            "extra": ANY_OBJECT,
        }
    ),
    "PaymentRequired": record({"amount": PRICE, "currency": {"const": "USDC"}, "network": NETWORK}),
    "X402": record({"token": {"const": "USDC"}, "amount": PRICE, "address": SHOWN_ADDRESS}),
    "ShapeA": record({"x402": ref("X402")}),
    "ShapeB": record(
        {
            "error": TEXT,
            "x402Version": {"const": 1},
            "accepts": listed(TEXT),
            "paymentRequired": ref("PaymentRequired"),
        }
    ),
    "Challenge": answered(
        {
            "error": TEXT,
            **_ASKED_FOR,
            "resource": record(
                {
                    "title": TEXT,
                    "description": TEXT,
                    "credits": COUNT,
                    "onFailure": _OF_TARGETS["onFailure"],
                    "creditBinding": {"enum": ["token", "wallet"]},
                    "creditsExpireAfter": COUNT,
                },
                optional=["creditBinding", "creditsExpireAfter"],
            ),
            "errorDetail": record(
                {"type": {"const": "payment"}, "code": {"const": "CREDITS_EXHAUSTED"}, "message": TEXT}
            ),
        },
        optional=["errorDetail"],
    ),
    "RefusedPayment": answered({"error": ref("Refusal"), **_ASKED_FOR}),
    "Bought": answered(
        {"downloadUrl": TEXT, "fileName": TEXT, "size": COUNT, "contentType": TEXT, "sha256": TEXT, "expiresAt": TIME}
    ),
    "Ready": answered({"status": TEXT, "checks": record({"database": FLAG, "hub": FLAG}), "problems": listed(TEXT)}),
}
