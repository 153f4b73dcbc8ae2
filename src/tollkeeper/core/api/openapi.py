"""OpenAPI 3.1 documents out of what each operation says of itself (contract 2, `/openapi.json`).

An `Operation` stands beside the handler that it describes and is what the handler is registered by, so that there is
none without a description. What this module does not do: know any route, or serve the document.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.core.api.errors import TABLE, Code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Schema = dict[str, Any]

JSON: Final = "application/json"
_REF: Final = "#/components/schemas/"
# What any request may be answered: it could not be read, its head is too large, too many wait on its connection,
# something went wrong on our side.
_ANYWHERE: Final = (Code.INVALID_PARAMETER, Code.HEADERS_TOO_LARGE, Code.RATE_LIMITED, Code.INTERNAL_ERROR)


class Bearer(StrEnum):
    """Rules for `Authorization: Bearer ...` of an operation."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter; `place` is path, query or header."""

    name: str
    place: str
    schema: Schema
    description: str = ""
    required: bool = False

    def body(self) -> dict[str, Any]:
        """The Parameter Object."""
        shown = {"name": self.name, "in": self.place, "schema": self.schema, "required": self.required}
        return {**shown, "description": self.description} if self.description else shown


@dataclass(frozen=True, slots=True)
class ResponseSpec:
    """An answer that is no refusal: its schema by media type.

    `headers` are those that it has beside everybody's, `may_have` those that some have.
    """

    description: str
    content: Mapping[str, Schema] = field(default_factory=dict)
    headers: Mapping[str, Schema] = field(default_factory=dict)
    may_have: Mapping[str, Schema] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method at one path.

    `answers` by status; the first one is that of success, "default" stands for any. `codes` are those of its refusals,
    with the status of the table; `also` are codes with another status. `refusal_schemas` name the body of refusals, by
    status, where it has more than Error, and `refusal_headers` what such a refusal may have. `is_limited`: its answers
    may say how its caller stands with a limit. `is_page`: a browser gets what is no success as a page. Where there is a
    304, a 200 has an ETag. `links`: of the operations that
    can be asked next, by id, where in the answer their parameters are.
    """

    id: str
    method: str
    path: str
    tag: str
    summary: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    request: Mapping[str, Schema] = field(default_factory=dict)
    request_required: bool = True
    bearer: Bearer = Bearer.NONE
    answers: Mapping[int | str, ResponseSpec]
    codes: tuple[Code, ...] = ()
    also: Mapping[int, tuple[Code, ...]] = field(default_factory=dict)
    refusal_schemas: Mapping[int, str] = field(default_factory=dict)
    refusal_headers: Mapping[int, Mapping[str, Schema]] = field(default_factory=dict)
    is_limited: bool = False
    is_page: bool = False
    links: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """The status of success. Raises: ValueError where it is the target's to choose."""
        return int(next(iter(self.answers)))

    def refusals(self) -> dict[int, tuple[Code, ...]]:
        """Every code that it may answer, by status."""
        found: dict[int, dict[Code, None]] = {}
        for code in (*self.codes, *_ANYWHERE):
            found.setdefault(TABLE[code][1], {})[code] = None
        for status, codes in self.also.items():
            found.setdefault(status, {}).update(dict.fromkeys(codes))
        return {status: tuple(found[status]) for status in sorted(found)}

    def body(self) -> dict[str, Any]:
        """The Operation Object."""
        shown: dict[str, Any] = {"operationId": self.id, "tags": [self.tag], "summary": self.summary}
        if self.description:
            shown["description"] = self.description
        if self.parameters:
            shown["parameters"] = [parameter.body() for parameter in self.parameters]
        if self.request:
            shown["requestBody"] = {"required": self.request_required, "content": _content(self.request)}
        if self.bearer is not Bearer.NONE:
            shown["security"] = [{"bearer": []}, *([{}] if self.bearer is Bearer.OPTIONAL else [])]
        shown["responses"] = self._responses()
        return shown

    def _responses(self) -> dict[str, Any]:
        shown = {str(status): _answer(answer) for status, answer in self.answers.items()}
        if self.links:
            first = next(iter(shown.values()))
            first["links"] = {name: {"operationId": name, "parameters": dict(at)} for name, at in self.links.items()}
        for status, codes in self.refusals().items():
            may_have = self.refusal_headers.get(status, {})
            refusal = _refusal(status, codes, self.refusal_schemas.get(status, "Error"), may_have)
            known = shown.setdefault(str(status), refusal)
            if known is not refusal:  # a 402 is an answer, and may be a refusal
                known["description"] += f" Or {refusal['description']}"
                either = [known["content"][JSON]["schema"], refusal["content"][JSON]["schema"]]
                known["content"][JSON] = {"schema": {"anyOf": either}}
        for name, response in shown.items():
            if self.is_page and "400" <= name <= "599" and JSON in response.get("content", {}):
                response["content"]["text/html"] = {"schema": {"type": "string"}}
        if 304 in self.answers:
            shown["200"]["headers"]["ETag"] = {"required": True, "schema": {"type": "string"}}
        if self.is_limited:
            for response in shown.values():
                response["headers"].update(_LIMITS)
        return shown


def _content(by_type: Mapping[str, Schema]) -> dict[str, Any]:
    return {media_type: {"schema": schema} for media_type, schema in by_type.items()}


_EVERYBODYS: Final = {
    "X402-Version": {"$ref": "#/components/headers/X402Version"},
    "X-Request-Id": {"$ref": "#/components/headers/RequestId"},
    "X-Correlation-Id": {"$ref": "#/components/headers/CorrelationId"},
}
_LIMITS: Final = {
    "RateLimit": {"$ref": "#/components/headers/RateLimit"},
    "RateLimit-Policy": {"$ref": "#/components/headers/RateLimitPolicy"},
}
_COMPONENTS: Final = {
    "headers": {
        "X402Version": {"required": True, "schema": {"type": "string", "const": "1"}},
        "RequestId": {"required": True, "description": "Names the log line.", "schema": {"type": "string"}},
        "CorrelationId": {
            "required": False,
            "description": "As the request had it, where that was 1 to 64 of A-Z, a-z, 0-9, dot, hyphen, underscore.",
            "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"},
        },
        "RateLimit": {
            "required": False,
            "description": "How the caller stands: the limit's name, how many more at once (r), seconds to all (t).",
            "schema": {"type": "string", "pattern": '^"[a-z]+";r=[0-9]+;t=[0-9]+$'},
        },
        "RateLimitPolicy": {
            "required": False,
            "description": "The limit's name, how many requests (q) in how many seconds (w).",
            "schema": {"type": "string", "pattern": '^"[a-z]+";q=[0-9]+;w=[0-9]+$'},
        },
    },
    "securitySchemes": {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "description": "The access token of a login, or the management token of one PayGate.",
        }
    },
}


def _answer(answer: ResponseSpec) -> dict[str, Any]:
    headers = {name: {"required": True, "schema": schema} for name, schema in answer.headers.items()}
    headers |= _optional(answer.may_have)
    shown: dict[str, Any] = {"description": answer.description, "headers": {**_EVERYBODYS, **headers}}
    if answer.content:
        shown["content"] = _content(answer.content)
    return shown


def _optional(headers: Mapping[str, Schema]) -> dict[str, Any]:
    return {name: {"required": False, "schema": schema} for name, schema in headers.items()}


def _refusal(status: int, codes: tuple[Code, ...], schema_name: str, may_have: Mapping[str, Schema]) -> dict[str, Any]:
    headers: dict[str, Any] = {**_EVERYBODYS, **_optional(may_have)}
    if status == 401:
        headers["WWW-Authenticate"] = {"required": True, "schema": {"type": "string", "pattern": "^Bearer"}}
    if status == 405:
        headers["Allow"] = {"required": True, "schema": {"type": "string"}}
    if status in {429, 503}:
        headers["Retry-After"] = {"required": True, "schema": {"type": "string", "pattern": "^[0-9]+$"}}
    named = {"properties": {"error": {"properties": {"code": {"enum": [code.value for code in codes]}}}}}
    schema = {"allOf": [ref(schema_name), named]}
    return {"description": ", ".join(codes), "headers": headers, "content": _content({JSON: schema})}


def ref(name: str) -> Schema:
    """A schema of the document, by its name."""
    return {"$ref": _REF + name}


def document(
    title: str, description: str, server_url: str, operations: Iterable[Operation], schemas: Mapping[str, Schema]
) -> dict[str, Any]:
    """The OpenAPI document of these operations, with those of the schemas that they name.

    Raises: ValueError where two operations are one, or a name is of no schema.
    """
    paths: dict[str, dict[str, Any]] = {}
    ids: set[str] = set()
    for operation in operations:
        item = paths.setdefault(operation.path, {})
        if operation.method in item or operation.id in ids:
            msg = f"{operation.id} is described twice"
            raise ValueError(msg)
        ids.add(operation.id)
        item[operation.method] = operation.body()
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "v1", "description": description},
        "servers": [{"url": server_url}],
        "paths": paths,
        "components": {"schemas": _named(paths, schemas), **_COMPONENTS},
    }


def _named(shown: object, schemas: Mapping[str, Schema]) -> dict[str, Schema]:
    """The schemas that are named in `shown`, and in them."""
    found: dict[str, Schema] = {}
    ahead = [shown]
    while ahead:
        value = ahead.pop()
        if isinstance(value, dict):
            ahead.extend(value.values())
            name = str(value.get("$ref", "")).removeprefix(_REF)
            if str(value.get("$ref", "")).startswith(_REF) and name not in found:
                if name not in schemas:
                    msg = f"there is no schema {name}"
                    raise ValueError(msg)
                found[name] = schemas[name]
                ahead.append(schemas[name])
        elif isinstance(value, list):
            ahead.extend(value)
    return {name: found[name] for name in sorted(found)}
