"""One HTTP listener inside the running event loop, and a process that serves until it is told to stop (security F21).

Stopping closes the listener at once, lets every accepted request finish within a time, and only then returns, so that
the caller closes databases last. A second signal ends the waiting. What this module does not do: know what is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from dataclasses import dataclass
from email.utils import formatdate
from errno import EACCES, EADDRINUSE
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import structlog
import uvicorn
import uvloop

from tollkeeper.api import error_envelope, header_pairs, new_request_id
from tollkeeper.core.http.timeouts import Patience
from tollkeeper.edge.server.protocol_class import strict_protocol
from tollkeeper.serving import StartError
from tollkeeper.serving.http.access_log import AccessLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator
    from types import TracebackType

    from tollkeeper.core.api.errors import ApiError
    from tollkeeper.core.http.forwarding import Header
    from tollkeeper.serving.http.asgi import Application

T = TypeVar("T")

_LOG = structlog.get_logger("tollkeeper.serving")
_BACKLOG: Final = 2048
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class ListenError(StartError):
    """The address cannot be listened on."""


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a listener."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """The origin by which this machine reaches it."""
        host = self.host
        with contextlib.suppress(ValueError):
            address = ip_address(host)
            if address.is_unspecified:
                host = "127.0.0.1" if address.version == 4 else "::1"
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


def listen(host: str, port: int, setting: str | None = None) -> socket.socket:
    """A listening socket; port 0 takes any free one. `setting` names the address, unless --host and --port do.

    At "::" it takes callers over IPv6 and over IPv4, where this machine has both. Raises: ListenError, which says what
    to choose instead.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        is_for_both = host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=is_for_both)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while ")[0]  # what follows is the address once more
        if error.errno == EADDRINUSE:
            remedy = f"end what listens there, or choose another {setting or 'port (--port)'}"
        elif error.errno == EACCES:
            remedy = f"choose another {setting or 'port, from 1024 on (--port)'}"
        else:
            remedy = f"choose {f'another {setting}' if setting else 'an address of this machine (--host)'}"
        raise ListenError(f"{host}:{port} cannot be listened on ({reason}): {remedy}") from error


def render_refusal(error: ApiError) -> tuple[int, list[Header], bytes]:
    """The answer to bytes that the protocol refused, and that no application will see."""
    request_id = new_request_id()
    headers = {
        "Content-Type": "application/json",
        "Date": formatdate(usegmt=True),
        "X402-Version": "1",
        "X-Request-Id": request_id,
        **error.headers,
    }
    return error.status, header_pairs(headers), error_envelope(error, request_id)


class _Server(uvicorn.Server):
    """uvicorn inside our event loop: the signals are this process's own, and somebody waits for its start."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


class HttpServer:
    """`async with HttpServer(app, listen(host, port)):` serves `app` until the block ends, then drains.

    An `AccessLog` brings the calls that do not go through ASGI with it.
    """

    def __init__(
        self,
        app: Application,
        listening: socket.socket,
        *,
        drain_seconds: int = 600,
        patience: Patience | None = None,
    ) -> None:
        patience = patience or Patience()
        host, port = listening.getsockname()[:2]
        self.address = Address(host, port)
        self._listening = listening
        self._server = _Server(
            uvicorn.Config(
                app=app,
                http=strict_protocol(render_refusal, patience, app.calls if isinstance(app, AccessLog) else None),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,  # a target's own comes through; where there is none, AccessLog writes one
                proxy_headers=False,
                backlog=_BACKLOG,
                timeout_keep_alive=patience.idle_seconds,
                timeout_graceful_shutdown=drain_seconds,
            )
        )
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The origin by which this machine reaches the listener."""
        return self.address.url

    async def __aenter__(self) -> Self:
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        await self._server.listening.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop accepting and finish what was accepted; at once where the block was cancelled."""
        if self._serving is None:
            return
        self._server.should_exit = True
        if error is not None:
            self._serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._serving
        for server in self._server.servers:  # open yet where it was cancelled before uvicorn saw that it is to stop
            server.close()
        self._listening.close()


async def until_signalled(
    serve: Callable[[asyncio.Event], Awaitable[T]], reload: Callable[[], None] | None = None
) -> T | None:
    """The result of `serve(stop)`; a first signal sets `stop`, a second cancels it (the result is None).

    SIGTERM, SIGINT. SIGHUP asks to `reload`, also where it was ignored when the program was started (`nohup`): who
    starts a server in a terminal and closes that keeps it. Without `reload` it stops as the others do, of which a
    terminal that closes may send several: it hurries nothing, and is ignored where it was.
    """
    stop = asyncio.Event()
    task = asyncio.ensure_future(serve(stop))
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if not stop.is_set():
            _LOG.info("stopping")
            stop.set()
        else:
            _LOG.warning("stopping_at_once")
            task.cancel()

    def on_hangup() -> None:
        if not stop.is_set():
            (reload or on_signal)()

    heard = dict.fromkeys(_SIGNALS, on_signal)
    if reload is not None or signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        heard[signal.SIGHUP] = on_hangup
    for number, handler in heard.items():
        loop.add_signal_handler(number, handler)
    try:
        return await task
    except asyncio.CancelledError:
        return None
    finally:
        for number in heard:
            loop.remove_signal_handler(number)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a process's main coroutine on the fast event loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
