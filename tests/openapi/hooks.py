"""What schemathesis cannot know: a login of its own, and what has a meaning here. Loaded by the `schemathesis` command.

What is right in its form is given a meaning where it has none: a target that is there, a payment that is signed, a
token that buys. Schemathesis judges each request as it is sent, so that a wrong one stays wrong.
"""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import schemathesis
from schemathesis.core.parameters import ParameterLocation

from tests.specification.client import Chain, Wallet, authorization, header, payment, typed_data

KNOWN: Final[dict[str, Any]] = json.loads(Path(os.environ["OPENAPI_KNOWN"]).read_text())
SERVER: Final = str(KNOWN["serverUrl"])
WALLET: Final = Wallet(KNOWN["key"])
CHAIN: Final = Chain(KNOWN["token"])
CONTAINERS: Final = {
    ParameterLocation.PATH: "path_parameters",
    ParameterLocation.QUERY: "query",
    ParameterLocation.HEADER: "headers",
}


def asked(path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(SERVER + path, data)) as answer:  # noqa: S310 - our own
        found: dict[str, Any] = json.load(answer)
        return found


def access_token() -> str:
    message = asked(f"/api/v1/auth/message?walletAddress={WALLET.address}")["message"]
    proof = {"message": message, "signature": WALLET.sign_text(message)}
    return str(asked("/api/v1/auth/login", proof)["accessToken"])


class LeavingCaller:
    """Each logs out of a login that is nobody else's."""

    def get(self, case: schemathesis.Case[Any], context: schemathesis.AuthContext) -> str:  # noqa: ARG002 - the interface
        return access_token()

    def set(self, case: schemathesis.Case[Any], data: str, context: schemathesis.AuthContext) -> None:  # noqa: ARG002
        case.headers["Authorization"] = f"Bearer {data}"


class Caller(LeavingCaller):
    """Everything else is asked by one wallet."""


if KNOWN["caller"] == "wallet":
    schemathesis.auth(refresh_interval=300).apply_to(path="/api/v1/auth/logout")(LeavingCaller)
    schemathesis.auth(refresh_interval=300).skip_for(path="/api/v1/auth/logout")(Caller)


def signed(value: int = 1) -> dict[str, Any]:
    """A payment of the wallet that nobody has seen."""
    wanted = authorization(WALLET.address, KNOWN["payTo"], value)
    return payment(wanted, WALLET.sign_typed(typed_data(wanted, CHAIN)))


def time_ago(days: int) -> str:
    return (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="seconds").replace("+00:00", "Z")


PRICES: Final = cycle(["0.000001", "1.5", 2, 0.25, "999999999999.999999", "0.010000", "1"])
ACCEPTS: Final = cycle([[], KNOWN["accepts"]])  # the networks that the program has beside the PayGate's own
TARGET_HEADERS: Final = cycle(
    [
        {},
        {"X-Api-Key": "secret"},
        {"X-Api-Key": "a b", "Accept-Language": "en", "X-Empty": ""},
    ]
)
OF_GATES: Final[dict[str, Callable[[], Any]]] = {
    "targetUrl": lambda: KNOWN["targetUrl"],
    "network": lambda: "base-sepolia",
    "paymentAddress": lambda: KNOWN["payTo"],
    "accepts": lambda: next(ACCEPTS),
    "targetHeaders": lambda: next(TARGET_HEADERS),
    "price": lambda: next(PRICES),
    "slug": lambda: f"s-{time.time_ns()}",
}
OF_SPANS: Final[dict[str, Callable[[], Any]]] = {"from": lambda: time_ago(2), "to": lambda: time_ago(0)}
OF_BUYERS: Final[dict[str, Callable[[], Any]]] = {
    "X-Payment": lambda: KNOWN["payment"],
    "X-Credit-Token": lambda: KNOWN["creditToken"],
    "X-Payment-Network": lambda: "base-sepolia",
}
OF_LINKS: Final[dict[str, Callable[[], Any]]] = {
    **{name: partial(str, text) for name, text in KNOWN["download"].items()},
    "If-Match": lambda: "*",
}
MEANT: Final[dict[str, dict[str, Callable[[], Any]]]] = {
    # Without a login a key is to be long; see the parameter's description.
    "createPayGate": {**OF_GATES, "Idempotency-Key": lambda: f"key-of-{time.time_ns()}"},
    "transfer": {"Idempotency-Key": lambda: f"key-of-{time.time_ns()}"},
    "updatePayGate": OF_GATES,
    "statistics": OF_SPANS,
    "payGateStatistics": OF_SPANS,
    "loginMessage": {"walletAddress": lambda: WALLET.address},
    "credits": OF_BUYERS,
    "payment": {
        "network": lambda: "base-sepolia",
        "payer": lambda: KNOWN["paid"]["payer"],
        "nonce": lambda: KNOWN["paid"]["nonce"],
    },
    "downloadByGet": OF_LINKS,
    "downloadByHead": OF_LINKS,
}


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case[Any], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
    """Gives a meaning to what is right in its form."""
    name = str(case.operation.definition.raw["operationId"])
    for place, container in CONTAINERS.items():
        values = getattr(case, container)
        for parameter, meant in MEANT.get(name, {}).items():
            if parameter in values and _fits(_parameter(name, place, parameter), values[parameter]):
                values[parameter] = meant()
    if isinstance(case.body, dict):
        case.body = _meant_body(case, name, _whole(case.body))
    if name.startswith("callBy") and not _is_wrong(case, *CONTAINERS):
        _call_what_was_bought(case)


def _meant_body(case: schemathesis.Case[Any], name: str, body: dict[str, Any]) -> dict[str, Any]:
    if name in {"createPayGate", "updatePayGate", "testTarget"}:
        fields = _body_schema(name, str(case.media_type)).get("properties", {})
        return {
            field: OF_GATES[field]()
            if field in OF_GATES and value is not None and _fits(fields.get(field), value)
            else value
            for field, value in body.items()
        }
    is_of_payments = name in {"transfer", "verify", "settle", "standing"}
    if not is_of_payments or not _fits(_body_schema(name, str(case.media_type)), body):
        return body
    paid = signed()
    if name in {"verify", "settle"}:
        required = body["paymentRequirements"] if body["x402Version"] in {1, 2} else {}  # of others anything goes
        if required.get("scheme") != "exact" or "base" not in required.get("network", ""):
            return body  # answered with a reason
        same = {"network": "base-sepolia", "asset": CHAIN.token, "payTo": KNOWN["payTo"], "maxAmountRequired": "1"}
        return {**body, "x402Version": 1, "paymentPayload": paid, "paymentRequirements": {**required, **same}}
    if name == "transfer" and "payload" not in body:  # the gateway's
        if not _is_wrong(case, ParameterLocation.HEADER):
            for shown in {"X-Payment", "PAYMENT-SIGNATURE"} & set(case.headers):  # each takes either version
                case.headers[shown] = header(paid)
        options = {field: value for field, value in body.items() if field == "confirm"}
        return {**options, "network": "base-sepolia", **paid["payload"]}
    known = {
        "amount": "1",
        "recipient": KNOWN["payTo"],
        "payload": paid["payload"],
        "network": "base-sepolia",
        "asset": CHAIN.token,
        "payer": WALLET.address,
        "nonce": paid["payload"]["authorization"]["nonce"],
    }
    return {field: known.get(field, value) if value is not None else None for field, value in body.items()}


def _whole(value: Any) -> Any:
    """JSON Schema takes 9.0 for an integer, and has no word for a program that wants it to be written as 9."""
    match value:
        case dict():
            return {name: _whole(one) for name, one in value.items()}
        case list():
            return [_whole(one) for one in value]
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case _:
            return value


def _call_what_was_bought(case: schemathesis.Case[Any]) -> None:
    """A call that shows a proof becomes one of the PayGate that was bought, with a proof that is good there."""
    shown = {name for name in ("X-Payment", "X-Credit-Token") if name in case.headers}
    if shown:
        case.path_parameters["slug"] = KNOWN["slug"]
    for name, meant in OF_BUYERS.items():
        if name in case.headers:
            case.headers[name] = meant()


def _is_wrong(case: schemathesis.Case[Any], *places: ParameterLocation) -> bool:
    return case.meta is not None and any(case.meta.is_negative_at(place) for place in places)


@cache
def _document() -> dict[str, Any]:
    return asked("/openapi.json")


@cache
def _operation(name: str) -> dict[str, Any]:
    for item in _document()["paths"].values():
        for operation in item.values():
            if operation["operationId"] == name:
                found: dict[str, Any] = operation
                return found
    raise KeyError(name)


@cache
def _body_schema(name: str, media_type: str) -> dict[str, Any]:
    schema: dict[str, Any] = _operation(name)["requestBody"]["content"].get(media_type, {}).get("schema", {})
    if "$ref" in schema:
        return dict(_document()["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    return schema


@cache
def _parameter(name: str, place: ParameterLocation, parameter: str) -> dict[str, Any] | None:
    for one in _operation(name).get("parameters", ()):
        if (one["in"], one["name"]) == (place.value, parameter):
            schema: dict[str, Any] = one["schema"]
            return schema
    return None


def _fits(schema: dict[str, Any] | None, value: object) -> bool:
    if schema is None:
        return False
    whole = {"components": _document()["components"], **schema}
    validator = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
    try:
        return bool(validator.is_valid(value))
    except ValueError:  # what JSON cannot say
        return False
