"""Registers handlers by their descriptions, and serves what these make: `/openapi.json` and `/docs` (contract 2).

The page is static HTML of ours, without anything from elsewhere. A sandbox's has a script of ours, by which each
operation can be tried; nobody else's has any.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from base64 import b64encode
from dataclasses import replace
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from litestar import Litestar, Response
from litestar.handlers import HTTPRouteHandler
from litestar.plugins.core import MsgspecDIPlugin

from tollkeeper.api import HttpRequest, content_unless_known
from tollkeeper.core.api.bodies import AnyObject
from tollkeeper.core.api.openapi import Operation, document, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from litestar.plugins import PluginProtocol

    from tollkeeper.core.api.errors import Code
    from tollkeeper.core.json_types import JsonObject

T = TypeVar("T")

_OPERATION: Final = "operation"
OPENAPI: Final = Operation(
    "openapi", "get /openapi.json", "This description", tag="description", answers=read("OpenAPI 3.1", AnyObject)
)
DOCS: Final = Operation(
    "docs",
    "get /docs",
    "This description as a page",
    tag="description",
    answers=read("HTML", str, media_type="text/html"),
)


class Handlers(Litestar):
    """Litestar without its support for pydantic and attrs, which nothing of ours uses: it holds eight megabytes."""

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return [*plugins, MsgspecDIPlugin()]


def route(operation: Operation, **options: Any) -> Callable[[Callable[..., Any]], HTTPRouteHandler]:  # noqa: ANN401 - Litestar's
    """Registers a handler as its operation says: method, path, status of success; `options` are Litestar's."""
    return HTTPRouteHandler(
        _litestar_path(operation.path),
        http_method=_methods(operation),  # type: ignore[arg-type]  # the methods' names
        status_code=operation.status,
        opt={_OPERATION: operation},
        **options,
    )


def _methods(operation: Operation) -> list[str]:
    """Return the methods of an operation.

    HEAD is answered where GET is (RFC 9110 9.3.2): the listener leaves the body out.
    """
    method = operation.method.upper()
    return [method, "HEAD"] if method == "GET" else [method]


def operations_of(handlers: Iterable[HTTPRouteHandler]) -> list[Operation]:
    """Return the descriptions that the handlers were registered by. Raises: KeyError for one that has none."""
    return [handler.opt[_OPERATION] for handler in handlers]


def description_routes(
    title: str,
    server_url: str,
    handlers: Sequence[HTTPRouteHandler],
    others: Sequence[Operation],
    in_front: tuple[Code, ...] = (),
    trying: Callable[[], str] | None = None,
) -> list[HTTPRouteHandler]:
    """The routes of the description, to be registered before the handlers.

    `others` are operations that are not Litestar's to serve; `in_front`, with what every one may be refused before a
    handler is asked; `trying`, where the script is by which an operation is tried.
    """
    operations = [
        replace(one, codes=(*one.codes, *in_front)) for one in (*operations_of(handlers), *others, OPENAPI, DOCS)
    ]
    text = (
        "Every answer that is no success has the body Error, and says by its code what was wrong. Where too many "
        "requests wait on one connection, anything is RATE_LIMITED. Whole numbers are written without a fraction. "
        "HEAD is answered wherever GET is, as GET is, without the body. Beside the headers that are described here, "
        "answers have those of the connection, of caching and for web pages (Cache-Control, Access-Control-* and such)."
    )

    making = asyncio.Lock()

    @cache
    def made() -> tuple[bytes, bytes]:
        # Only once somebody asks: to make them takes a tenth of a second, and the memory of all schemas.
        described = document(title, text, server_url, operations)
        return msgspec.json.encode(described), _page(described, None if trying is None else trying()).encode()

    async def made_once() -> tuple[bytes, bytes]:
        async with making:  # else all who come at once would make it, each in a thread
            return await asyncio.to_thread(made)

    @route(OPENAPI)
    async def openapi(request: HttpRequest) -> Response[bytes]:
        body, _ = await made_once()
        headers = {"Access-Control-Allow-Origin": "*", "Cache-Control": "no-cache"}
        return content_unless_known(request, body, "application/json", headers)

    @route(DOCS)
    async def docs(request: HttpRequest) -> Response[bytes]:
        _, page = await made_once()
        policy = _POLICY if trying is None else _POLICY + "; script-src 'self'; connect-src 'self'"
        headers = {
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-cache",
        }
        return content_unless_known(request, page, "text/html", headers)

    return [*_options(operations_of([*handlers, openapi, docs])), openapi, docs]


def _options(operations: Iterable[Operation]) -> list[HTTPRouteHandler]:
    """`OPTIONS` of every path. To be registered first: Litestar's own names a path's first method and no other."""
    methods: dict[str, list[str]] = {}
    for operation in operations:
        methods.setdefault(operation.path, []).extend(_methods(operation))
    return [_allowing(path, ", ".join([*names, "OPTIONS"])) for path, names in methods.items()]


def _allowing(path: str, allow: str) -> HTTPRouteHandler:
    async def options() -> Response[None]:
        return Response(None, headers={"Allow": allow})

    return HTTPRouteHandler(_litestar_path(path), http_method="OPTIONS", status_code=204)(options)


def _litestar_path(path: str) -> str:
    return path.replace("}", ":str}")


_STYLE: Final = (
    ":root{color-scheme:light dark}a{color:inherit}"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;overflow-wrap:anywhere}"
    "pre{border:1px solid #8888;padding:.75rem;overflow:auto;font-size:.85rem}"
    "summary{cursor:pointer;padding:.3rem 0}table{border-collapse:collapse}"
    "td,th{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0}"
    "label{display:block;margin-top:.5rem}input,textarea{font:inherit;width:100%;box-sizing:border-box}"
    "button{font:inherit;margin:.75rem 0;padding:.3rem 1rem}:focus-visible{outline:2px solid;outline-offset:2px}"
)
_HASH: Final = b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY: Final = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; frame-ancestors 'none'"


def _page(described: JsonObject, script: str | None) -> str:
    title = escape(described["info"]["title"])
    by_tag: dict[str, list[str]] = {}
    for path, item in described["paths"].items():
        for method, operation in item.items():
            by_tag.setdefault(operation["tags"][0], []).append(_shown(path, method, operation))
    parts = [f"<h2>{escape(tag)}</h2>" + "".join(shown) for tag, shown in by_tag.items()]
    tried = "" if script is None else f'<script type="module" src="{escape(script)}"></script>'
    schemas = [
        f'<h3 id="{escape(name)}">{escape(name)}</h3>{_code(schema)}'
        for name, schema in described["components"]["schemas"].items()
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>{tried}</head><body><main>'
        f"<h1>{title}</h1><p>{escape(described['info']['description'])}</p>"
        f"<p>Base URL: <code>{escape(described['servers'][0]['url'])}</code>. For programs: "
        f'<a href="openapi.json">openapi.json</a></p>{"".join(parts)}<h2>schemas</h2>{"".join(schemas)}'
        "</main></body></html>"
    )


def _shown(path: str, method: str, operation: JsonObject) -> str:
    rows = "".join(
        f"<tr><td>{escape(one['name'])}</td><td>{escape(one['in'])}{', required' if one['required'] else ''}</td>"
        f"<td>{escape(one.get('description', ''))}</td></tr>"
        for one in operation.get("parameters", ())
    )
    answers = "".join(
        f"<tr><td>{escape(status)}</td><td>{escape(answer['description'])}</td></tr>"
        for status, answer in operation["responses"].items()
    )
    body = "".join(
        f"<p>{escape(media_type)}</p>{_code(content['schema'])}"
        for media_type, content in operation.get("requestBody", {}).get("content", {}).items()
    )
    return (
        f'<details data-method="{method}" data-path="{escape(path)}">'
        f"<summary><code>{method.upper()} {escape(path)}</code> {escape(operation['summary'])}</summary>"
        f"<p>{escape(operation.get('description', ''))}</p><table>{rows}</table>{body}"
        f"<table>{answers}</table></details>"
    )


def _code(schema: object) -> str:
    return f'<pre tabindex="0">{escape(json.dumps(schema, indent=1))}</pre>'
