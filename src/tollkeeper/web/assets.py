"""The scripts and styles of the pages, under `/assets/<version>/`.

The version is made of their content, so browsers may keep them for ever, and a page never meets those of another.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from litestar import asgi

from tollkeeper.core.api.errors import ApiError, Code

if TYPE_CHECKING:
    from litestar.handlers import ASGIRouteHandler
    from litestar.types import HTTPScope, Receive, Send

_TYPES: Final = {"css": b"text/css; charset=utf-8", "js": b"text/javascript; charset=utf-8", "svg": b"image/svg+xml"}
# Of a line of ours: its indentation, or all of it where it says nothing to a browser.
_SPACE_AND_COMMENTS: Final = re.compile(rb"(?m)^[ \t]*(?://.*)?\n|^[ \t]+")
_KEPT: Final = b"public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class _Asset:
    media_type: bytes
    packed: bytes
    plain: bytes


class Assets:
    """The files of `static`, read once, when the first page is asked for."""

    @cached_property
    def _all(self) -> dict[str, _Asset]:
        found = {}
        for file in sorted(files("tollkeeper.web").joinpath("static").iterdir(), key=lambda one: one.name):
            plain = _SPACE_AND_COMMENTS.sub(b"", file.read_bytes())
            media_type = _TYPES[file.name.rpartition(".")[2]]
            found[file.name] = _Asset(media_type, gzip.compress(plain, mtime=0), plain)
        return found

    @cached_property
    def version(self) -> str:
        """A name of all their contents."""
        return hashlib.sha256(b"\0".join(one.plain for one in self._all.values())).hexdigest()[:12]

    def plain(self, name: str) -> bytes:
        """Return one file's content."""
        return self._all[name].plain

    def route(self) -> ASGIRouteHandler:
        """Return the handler of `/assets`."""

        @asgi("/assets", is_mount=True, copy_scope=False)
        async def assets(scope: HTTPScope, receive: Receive, send: Send) -> None:
            del receive
            await self.serve(scope, send)

        return assets

    async def serve(self, scope: HTTPScope, send: Send) -> None:
        """Answer GET and HEAD. Raises: NOT_FOUND, METHOD_NOT_ALLOWED."""
        version, _, name = scope["path"].removeprefix("/assets").strip("/").partition("/")
        asset = self._all.get(name) if version == self.version else None
        if asset is None:
            raise ApiError(Code.NOT_FOUND, "there is nothing at this path")
        if scope["method"] not in {"GET", "HEAD"}:
            raise ApiError(Code.METHOD_NOT_ALLOWED, "the method is not allowed here", headers={"Allow": "GET, HEAD"})
        takes_gzip = any(name == b"accept-encoding" and b"gzip" in value for name, value in scope["headers"])
        body = asset.packed if takes_gzip else asset.plain
        headers = [
            (b"content-type", asset.media_type),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", _KEPT),
            (b"vary", b"Accept-Encoding"),
            (b"x-content-type-options", b"nosniff"),
            *([(b"content-encoding", b"gzip")] if takes_gzip else []),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})
