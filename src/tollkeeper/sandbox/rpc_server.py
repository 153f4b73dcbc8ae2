"""A JSON-RPC 2.0 server for the sandbox's chains: a table of methods, and its listener.

Single requests and batches over HTTP POST, as the chains' nodes take them. Nothing here knows a chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
import structlog
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType

    Method = Callable[..., Any]

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
    """Answers requests by `methods[method](*params)`, one call at a time."""

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


class RpcServer:
    """Serves a table of methods on 127.0.0.1 inside the running event loop: POST to any path.

    `async with server:` serves at `server.url` until the block ends.
    """

    def __init__(
        self,
        answer: Callable[[bytes], object],
        *,
        port: int = 0,
        subscribe: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None,
    ) -> None:
        """`answer` is given a request's body, `subscribe` whoever opens a WebSocket; `port` 0 takes any free one."""
        self.url = ""
        self._answer_to = answer
        self._port = port
        self._subscribe = subscribe
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> str:
        """Listen, and return the URL. Raises: OSError where the port is taken."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/{path:.*}", self._post)
        if self._subscribe is not None:
            app.router.add_get("/", self._subscribe)
        self._runner = runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", self._port).start()
        except OSError:
            await self.stop()
            raise
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self.url

    async def stop(self) -> None:
        """Stop listening and let open requests finish."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _post(self, request: web.Request) -> web.Response:
        answer = msgspec.json.encode(self._answer_to(await request.read()))
        return web.Response(body=answer, content_type="application/json")
