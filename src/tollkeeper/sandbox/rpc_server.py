"""A JSON-RPC 2.0 server for the sandbox's chains: an ASGI application over a table of methods, and its listener.

Single requests and batches over HTTP POST, as the chains' nodes take them. Nothing here knows a chain.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
import uvicorn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
    from types import TracebackType

    Method = Callable[..., Any]
    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
SERVER_ERROR: Final = -32000
MAX_BODY_BYTES: Final = 5 * 1024 * 1024

_log = structlog.get_logger(__name__)


class ServedRpcError(Exception):
    """A refusal that the caller sees as a JSON-RPC error object."""

    def __init__(self, message: str, *, code: int = SERVER_ERROR, data: object = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.data = data

    def as_json(self) -> dict[str, object]:
        """The `error` member."""
        error: dict[str, object] = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return error


class JsonRpcApp:
    """ASGI application: POST to any path calls `methods[method](*params)`, one call at a time."""

    def __init__(self, methods: Mapping[str, Method]) -> None:
        self._methods = methods

    def answer(self, request: object) -> dict[str, object]:
        """The response object to one request object."""
        if not isinstance(request, dict) or not isinstance(request.get("method"), str):
            refusal = ServedRpcError("invalid request", code=INVALID_REQUEST)
            return {"jsonrpc": "2.0", "id": None, "error": refusal.as_json()}
        head: dict[str, object] = {"jsonrpc": "2.0", "id": request.get("id")}
        try:
            return head | {"result": self.call(request["method"], request.get("params", []))}
        except ServedRpcError as error:
            return head | {"error": error.as_json()}
        except Exception:  # noqa: BLE001 - a faulty method is logged and must not end the node
            _log.exception("sandbox_rpc_failed", method=request["method"])
            return head | {"error": ServedRpcError("internal error", code=INTERNAL_ERROR).as_json()}

    def call(self, method: str, params: object = ()) -> Any:  # noqa: ANN401 - any JSON value
        """The result of one method. Raises: RpcError."""
        function = self._methods.get(method)
        if function is None:
            raise ServedRpcError(f"the method {method} does not exist/is not available", code=METHOD_NOT_FOUND)
        if not isinstance(params, list | tuple):
            raise ServedRpcError("params must be a list", code=INVALID_PARAMS)
        try:
            return function(*params)
        except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError) as error:
            # The methods read untyped JSON: what does not fit is the caller's mistake.
            raise ServedRpcError(f"invalid parameters of {method}", code=INVALID_PARAMS) from error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry."""
        if scope["type"] != "http":
            return None
        if scope["method"] != "POST":
            return await _respond(send, 405, b'{"error":"POST only"}')
        body = await _body(receive)
        if body is None:
            return await _respond(send, 413, b'{"error":"body too large"}')
        return await _respond(send, 200, msgspec.json.encode(self.answer_body(body)))

    def answer_body(self, body: bytes) -> object:
        """The response, or the list of them, to the body of an HTTP request."""
        try:
            request = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError):
            refusal = ServedRpcError("parse error", code=PARSE_ERROR)
            return {"jsonrpc": "2.0", "id": None, "error": refusal.as_json()}
        if isinstance(request, list) and request:
            return [self.answer(one) for one in request]
        return self.answer(request)


async def _body(receive: Receive) -> bytes | None:
    body: bytes = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            return None
        if not message.get("more_body"):
            return body


async def _respond(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Listener(uvicorn.Server):
    """uvicorn inside somebody else's event loop: signals are that program's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class RpcServer:
    """Serves an ASGI application on 127.0.0.1 inside the running event loop: `async with RpcServer(app) as url`."""

    def __init__(self, app: Callable[..., Any], *, port: int = 0) -> None:
        """`port` 0 takes any free one."""
        self._app = app
        self._port = port
        self._listener: _Listener | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Listen, and return the URL. Raises: OSError where the port is taken."""
        # Bound here and listened on before the URL is known to anyone, so nobody can connect too early. With the
        # protocol named, since asyncio turns Nagle's algorithm off only then, and answers would wait 40 ms.
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(("127.0.0.1", self._port))
            listening.listen(1024)
        except OSError:
            listening.close()
            raise
        config = uvicorn.Config(
            self._app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        self._listener = _Listener(config)
        self._serving = asyncio.create_task(self._listener.serve(sockets=[listening]))
        host, port = listening.getsockname()
        return f"http://{host}:{port}"

    async def stop(self) -> None:
        """Stop listening and let open requests finish."""
        if self._listener is not None and self._serving is not None:
            self._listener.should_exit = True
            await self._serving
            self._listener = self._serving = None

    async def __aenter__(self) -> str:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
