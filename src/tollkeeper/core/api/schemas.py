"""JSON Schemas of what gateway and hub have in common: money, addresses, errors, logins, x402 (specification 2, 4, 7).

They say what is taken and what is answered, no more: a request that fits may still be refused for what it means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tollkeeper.core.api.errors import Code, ErrorType
from tollkeeper.core.api.openapi import Parameter, ResponseSpec, ref
from tollkeeper.core.limits import HISTORY_LIMIT_MAX, LIST_LIMIT_DEFAULT, OFFSET_MAX
from tollkeeper.core.networks import ALIASES, CAIP2_NAMES, NETWORKS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tollkeeper.core.api.openapi import Schema

TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
TIME: Final[Schema] = {"type": "string", "format": "date-time"}
PRICE: Final[Schema] = {
    "type": "string",
    "pattern": r"^(0|[1-9][0-9]{0,11})(\.[0-9]{1,6})?$",
    "description": "USDC, decimal",
}
# As PRICE, but above zero.
PRICE_ASKED: Final[Schema] = {**PRICE, "pattern": r"^(?!0(\.0+)?$)(0|[1-9][0-9]{0,11})(\.[0-9]{1,6})?$"}
BASE_UNITS: Final[Schema] = {
    "type": "string",
    "pattern": "^[0-9]{1,78}$",
    "description": "Base units of the asset: 1000000 are 1 USDC",
}
SECONDS: Final[Schema] = {"type": "string", "pattern": "^[0-9]{1,78}$", "description": "Unix time"}
EVM_ADDRESS: Final[Schema] = {"type": "string", "pattern": "^0x[0-9a-fA-F]{40}$"}
WALLET_ADDRESS: Final[Schema] = {
    "type": "string",
    "pattern": "^(0x[0-9a-fA-F]{40}|[1-9A-HJ-NP-Za-km-z]{32,44})$",
    "description": "0x and 40 hex digits, or base58 of 32 bytes on Solana",
}
SHOWN_ADDRESS: Final[Schema] = {"type": "string", "description": "EIP-55 or base58"}
NETWORK: Final[Schema] = {"type": "string", "enum": sorted(NETWORKS)}
CAIP2_NETWORK: Final[Schema] = {"type": "string", "enum": sorted(CAIP2_NAMES)}
NETWORK_ASKED: Final[Schema] = {"type": "string", "enum": sorted({*NETWORKS, *ALIASES})}
HEADER_TEXT: Final[Schema] = {"type": "string", "pattern": "^[!-~]+$"}
NUMBER_TEXT: Final[Schema] = {"type": "string", "pattern": "^[0-9]+$"}
ANY_OBJECT: Final[Schema] = {"type": "object"}


def listed(of: Schema) -> Schema:
    """A list of these."""
    return {"type": "array", "items": of}


def nullable(schema: Schema) -> Schema:
    """The same, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def record(properties: dict[str, Any], optional: Iterable[str] = ()) -> Schema:
    """An object that has all of these but the optional ones, and may have more."""
    left_out = set(optional)
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in left_out],
    }


def answered(properties: dict[str, Any], optional: Iterable[str] = ()) -> Schema:
    """A JSON body of ours: the same with `apiVersion` and `timestamp` (specification 4)."""
    return record({**properties, "apiVersion": {"type": "string", "const": "v1"}, "timestamp": TIME}, optional)


def query(name: str, schema: Schema, description: str = "", *, required: bool = False) -> Parameter:
    """A parameter of the query string."""
    return Parameter(name, "query", schema, description, required)


def header(name: str, description: str = "", schema: Schema = HEADER_TEXT) -> Parameter:
    """An optional request header."""
    return Parameter(name, "header", schema, description)


def in_path(name: str, schema: Schema) -> Parameter:
    """A part of the path."""
    return Parameter(name, "path", schema, required=True)


def limit(*, required: bool = False) -> Parameter:
    """`limit` of a listing."""
    schema = {"type": "integer", "minimum": 1, "maximum": HISTORY_LIMIT_MAX}
    return query("limit", schema if required else {**schema, "default": LIST_LIMIT_DEFAULT}, required=required)


IF_NONE_MATCH: Final = header("If-None-Match", "What the caller has, by its ETag.", TEXT)
UNCHANGED: Final = ResponseSpec("The caller has it", headers={"ETag": TEXT})
IDEMPOTENCY_KEY: Final = header(
    "Idempotency-Key",
    "Asked again under the same key, the answer is the same.",
    {"type": "string", "pattern": "^[!-~]{1,255}$"},
)
PREFER_WAIT: Final = header("Prefer", "wait=N: wait for at most N seconds (RFC 7240).", TEXT)
OFFSET: Final = query("offset", {"type": "integer", "minimum": 0, "maximum": OFFSET_MAX, "default": 0})

_AUTHORIZATION: Final = record(
    {
        "from": EVM_ADDRESS,
        "to": EVM_ADDRESS,
        "value": BASE_UNITS,
        "validAfter": SECONDS,
        "validBefore": {"anyOf": [SECONDS, COUNT]},
        "nonce": {"type": "string", "pattern": "^0x[0-9a-fA-F]{64}$"},
    }
)
_USER: Final = {"id": COUNT, "walletAddress": SHOWN_ADDRESS, "createdAt": TIME, "updatedAt": TIME}
_PAIR: Final = {"accessToken": TEXT, "refreshToken": TEXT}

_NAMING_A_FIELD: Final[Schema] = {
    "if": {"properties": {"code": {"enum": [Code.INVALID_PARAMETER.value, Code.MISSING_PARAMETER.value]}}},
    "then": {
        "required": ["details"],
        "properties": {"details": {"properties": {"field": TEXT}, "required": ["field"]}},
    },
}

SCHEMAS: Final[dict[str, Schema]] = {
    "Error": answered({"error": ref("Refusal")}),
    "Refusal": record(
        {
            "type": {"enum": [kind.value for kind in ErrorType]},
            "code": {"enum": [code.value for code in Code]},
            "message": TEXT,
            "details": ANY_OBJECT,
            "requestId": TEXT,
        },
        optional=["details"],
    )
    | _NAMING_A_FIELD,
    "Pagination": record({"totalCount": COUNT, "limit": COUNT, "offset": COUNT, "hasNext": FLAG, "hasPrev": FLAG}),
    "User": record(_USER),
    "LoginMessage": answered({"message": TEXT}),
    "LoggedIn": answered({**_PAIR, "user": ref("User")}),
    "Tokens": answered(_PAIR),
    "CurrentUser": answered({**_USER, "user": ref("User")}),
    "Done": answered({"success": {"const": True}, "message": TEXT}),
    "Introspection": answered({"active": FLAG, "sub": TEXT, "exp": COUNT}, optional=["sub", "exp"]),
    "SigningKeys": answered(
        {"keys": listed(record({"kty": TEXT, "crv": TEXT, "x": TEXT, "kid": TEXT, "use": TEXT, "alg": TEXT}))}
    ),
    "Status": answered({"status": TEXT}),
    "Authorization": _AUTHORIZATION,
    "EvmPayload": record(
        {"signature": {"type": "string", "pattern": "^0x([0-9a-fA-F]{2})+$"}, "authorization": ref("Authorization")}
    ),
    "SolanaPayload": record({"transaction": {"type": "string", "maxLength": 2048}}),
    "Settled": answered(
        {
            "success": FLAG,
            "status": {"enum": ["success", "failed"]},
            "transaction": {"type": "string", "description": "Empty where there is none."},
            "network": TEXT,
            "amount": BASE_UNITS,
            "payer": nullable(SHOWN_ADDRESS),
            "errorReason": nullable(TEXT),
        }
    ),
}
