"""OpenAPI 3.1 documents out of what each operation says of itself (contract 2, `/openapi.json`).

An `Operation` stands in the table of its part's routes and is what its handler is registered by, so that there is none
without a description. Wherever a schema is asked for, a type that msgspec knows is one: its schema is made of it, and
that of a struct stands in the document's components. What this module does not do: know any route, or serve the
document.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta, Struct
from msgspec.json import schema_components

from tollkeeper.core.api.bodies import Error, HeaderText, NumberText, Schema
from tollkeeper.core.api.errors import Code
from tollkeeper.core.limits import HISTORY_LIMIT_MAX, LIST_LIMIT_DEFAULT, OFFSET_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tollkeeper.core.json_types import JsonObject

JSON: Final = "application/json"
_REF: Final = "#/components/schemas/{name}"
# What any request may be answered: it could not be read, its head is too large, too many wait on its connection,
# something went wrong on our side.
_ANYWHERE: Final = (Code.INVALID_PARAMETER, Code.HEADERS_TOO_LARGE, Code.RATE_LIMITED, Code.INTERNAL_ERROR)


class Bearer(StrEnum):
    """Rules for `AuthorizationBody: Bearer ...` of an operation."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter; `place` is path, query or header."""

    name: str
    place: str
    schema: object
    description: str = ""
    required: bool = False

    def body(self) -> JsonObject:
        """The Parameter Object."""
        shown = {"name": self.name, "in": self.place, "schema": self.schema, "required": self.required}
        return {**shown, "description": self.description} if self.description else shown


@dataclass(frozen=True, slots=True)
class ResponseSpec:
    """An answer that is no refusal: its schema by media type.

    `headers` are those that it has beside everybody's, `may_have` those that some have.
    """

    description: str
    content: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, object] = field(default_factory=dict)
    may_have: Mapping[str, object] = field(default_factory=dict)


def query(name: str, schema: object, description: str = "", *, required: bool = False) -> Parameter:
    """Return a parameter of the query string."""
    return Parameter(name, "query", schema, description, required)


def header(name: str, description: str = "", schema: object = HeaderText) -> Parameter:
    """Return an optional request header."""
    return Parameter(name, "header", schema, description)


def in_path(name: str, schema: object) -> Parameter:
    """Return a part of the path."""
    return Parameter(name, "path", schema, required=True)


def limit(*, required: bool = False) -> Parameter:
    """Return `limit` of a listing."""
    default: Schema = {} if required else {"default": LIST_LIMIT_DEFAULT}
    return query("limit", {"type": "integer", "minimum": 1, "maximum": HISTORY_LIMIT_MAX, **default}, required=required)


IF_NONE_MATCH: Final = header("If-None-Match", "What the caller has, by its ETag.", str)
IDEMPOTENCY_KEY: Final = header(
    "Idempotency-Key",
    "Asked again under the same key, the answer is the same.",
    Annotated[str, Meta(pattern="^[!-~]{1,255}$")],
)
PREFER_WAIT: Final = header("Prefer", "wait=N: wait for at most N seconds (RFC 7240).", str)
# Of a listing that is given as a table too.
CSV: Final = {"text/csv": str}
ROWS_IN_ALL: Final = {
    "X-Total-Count": Annotated[NumberText, Meta(description="Of a table: how many there are in all.")]
}
OFFSET: Final = query("offset", {"type": "integer", "minimum": 0, "maximum": OFFSET_MAX, "default": 0})


def answer(description: str, body: object, status: int = 200) -> dict[int | str, ResponseSpec]:
    """Return the answers of an operation that has one success, with that body."""
    return {status: ResponseSpec(description, {JSON: body})}


def read(
    description: str,
    body: object,
    more: Mapping[str, object] | None = None,
    may_have: Mapping[str, object] | None = None,
    headers: Mapping[str, object] | None = None,
    media_type: str = JSON,
) -> dict[int | str, ResponseSpec]:
    """Return the answers of a read: its success, also in the media types `more`, and a 304 to whoever has it."""
    success = ResponseSpec(description, {media_type: body, **(more or {})}, headers or {}, may_have or {})
    return {200: success, 304: ResponseSpec("The caller has it", headers={"ETag": str})}


@dataclass(frozen=True, slots=True)
class Operation:
    """One method at one path.

    `answers` by status; the first one is that of success, "default" stands for any. `codes` are those of its refusals,
    with the status of the table; `also` are codes with another status. `refusal_bodies` are those of refusals, by
    status, that have more than `error`, and `refusal_headers` what such a refusal may have. `is_limited`: its answers
    may say how its caller stands with a limit. `is_page`: a browser gets what is no success as a page. Where there is a
    304, `If-None-Match` is taken and a 200 has an ETag. `links`: of the operations that can be asked next, by id, where
    in the answer their parameters are.
    """

    id: str
    place: str  # "get /path"
    summary: str
    _: KW_ONLY
    tag: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    request: Mapping[str, object] = field(default_factory=dict)
    request_required: bool = True
    bearer: Bearer = Bearer.NONE
    answers: Mapping[int | str, ResponseSpec]
    codes: tuple[Code, ...] = ()
    also: Mapping[int, tuple[Code, ...]] = field(default_factory=dict)
    refusal_bodies: Mapping[int, object] = field(default_factory=dict)
    refusal_headers: Mapping[int, Mapping[str, object]] = field(default_factory=dict)
    is_limited: bool = False
    is_page: bool = False
    links: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """The method, in small letters."""
        return self.place.partition(" ")[0]

    @property
    def path(self) -> str:
        """The path, with names in braces for its parameters."""
        return self.place.partition(" ")[2]

    @property
    def status(self) -> int:
        """The status of success. Raises: ValueError where it is the target's to choose."""
        return int(next(iter(self.answers)))

    def refusals(self) -> dict[int, tuple[Code, ...]]:
        """Every code that it may answer, by status."""
        found: dict[int, dict[Code, None]] = {}
        for code in (*self.codes, *_ANYWHERE):
            found.setdefault(code.status, {})[code] = None
        for status, codes in self.also.items():
            found.setdefault(status, {}).update(dict.fromkeys(codes))
        return {status: tuple(found[status]) for status in sorted(found)}

    def body(self) -> JsonObject:
        """The Operation Object."""
        shown: JsonObject = {"operationId": self.id, "tags": [self.tag], "summary": self.summary}
        if self.description:
            shown["description"] = self.description
        parameters = (*self.parameters, *([IF_NONE_MATCH] if 304 in self.answers else []))
        if parameters:
            shown["parameters"] = [parameter.body() for parameter in parameters]
        if self.request:
            shown["requestBody"] = {"required": self.request_required, "content": _content(self.request)}
        if self.bearer is not Bearer.NONE:
            shown["security"] = [{"bearer": []}, *([{}] if self.bearer is Bearer.OPTIONAL else [])]
        shown["responses"] = self._responses()
        return shown

    def _responses(self) -> JsonObject:
        shown = {str(status): _answer(answer) for status, answer in self.answers.items()}
        if self.links:
            first = next(iter(shown.values()))
            first["links"] = {name: {"operationId": name, "parameters": dict(at)} for name, at in self.links.items()}
        for status, codes in self.refusals().items():
            may_have = self.refusal_headers.get(status, {})
            refusal = _refusal(status, codes, self.refusal_bodies.get(status, Error), may_have)
            known = shown.setdefault(str(status), refusal)
            if known is not refusal:  # a 402 is an answer, and may be a refusal
                known["description"] += f" Or {refusal['description']}"
                either = [known["content"][JSON]["schema"], refusal["content"][JSON]["schema"]]
                known["content"][JSON] = {"schema": {"anyOf": either}}
        for name, response in shown.items():
            if self.is_page and "400" <= name <= "599" and JSON in response.get("content", {}):
                response["content"]["text/html"] = {"schema": {"type": "string"}}
        if 304 in self.answers:
            shown["200"]["headers"]["ETag"] = {"required": True, "schema": str}
        if self.is_limited:
            for response in shown.values():
                response["headers"].update(_LIMITS)
        return shown


def _content(by_type: Mapping[str, object]) -> JsonObject:
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


def _answer(answer: ResponseSpec) -> JsonObject:
    headers = {name: {"required": True, "schema": schema} for name, schema in answer.headers.items()}
    headers |= _optional(answer.may_have)
    shown: JsonObject = {"description": answer.description, "headers": {**_EVERYBODYS, **headers}}
    if answer.content:
        shown["content"] = _content(answer.content)
    return shown


def _optional(headers: Mapping[str, object]) -> JsonObject:
    return {name: {"required": False, "schema": schema} for name, schema in headers.items()}


def _refusal(status: int, codes: tuple[Code, ...], body: object, may_have: Mapping[str, object]) -> JsonObject:
    headers: JsonObject = {**_EVERYBODYS, **_optional(may_have)}
    if status == 401:
        headers["WWW-Authenticate"] = {"required": True, "schema": {"type": "string", "pattern": "^Bearer"}}
    if status == 405:
        headers["Allow"] = {"required": True, "schema": str}
    if status in {429, 503}:
        headers["Retry-After"] = {"required": True, "schema": {"type": "string", "pattern": "^[0-9]+$"}}
    named = {"properties": {"error": {"properties": {"code": {"enum": [code.value for code in codes]}}}}}
    schema = {"allOf": [body, named]}
    return {"description": ", ".join(codes), "headers": headers, "content": _content({JSON: schema})}


def document(title: str, description: str, server_url: str, operations: Iterable[Operation]) -> Schema:
    """Return the OpenAPI document of these operations, with the schemas of the bodies that they name.

    Raises: ValueError where two operations are one.
    """
    paths: dict[str, Schema] = {}
    ids: set[str] = set()
    schemas: dict[str, Schema] = {}
    for operation in operations:
        item = paths.setdefault(operation.path, {})
        if operation.method in item or operation.id in ids:
            raise ValueError(f"{operation.id} is described twice")
        ids.add(operation.id)
        item[operation.method] = _with_schemas(operation.body(), schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "v1", "description": description},
        "servers": [{"url": server_url}],
        "paths": paths,
        "components": {"schemas": {name: schemas[name] for name in sorted(schemas)}, **_COMPONENTS},
    }


def _with_schemas(shown: Any, schemas: dict[str, Schema]) -> Any:  # noqa: ANN401 - JSON
    """Return `shown` with a schema in place of each type, and add those of structs to `schemas`, by their names."""
    if isinstance(shown, dict):
        return {name: _with_schemas(value, schemas) for name, value in shown.items()}
    if isinstance(shown, list):
        return [_with_schemas(value, schemas) for value in shown]
    if shown is None or isinstance(shown, str | int | float):
        return shown
    (schema,), found = schema_components((shown,), ref_template=_REF)
    new = {name: one for name, one in found.items() if name not in schemas}
    schemas.update(new)
    for body in _subclasses(Struct):
        if body.__name__ in new:
            _add(schemas[body.__name__], _with_schemas(getattr(body, "more", {}), schemas))
    return schema


def _subclasses(of: type[Struct]) -> list[type[Struct]]:
    return [one for body in of.__subclasses__() for one in (body, *_subclasses(body))]


def _add(schema: Schema, more: Schema) -> None:
    """Add the members of `more` to a schema."""
    for name, value in more.items():
        if name == "properties":
            schema[name].update(value)
        elif name == "required":
            schema[name] = [*schema.get(name, ()), *value]
        else:
            schema[name] = value
