"""The embedded Solana chain as a node: chain, slots at fixed intervals, JSON-RPC and its WebSocket on one port.

`tollkeeper sandbox` runs it inside its own event loop.
The WebSocket has the two subscriptions by which @solana/kit waits for a transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from aiohttp import WSMsgType, web

from tollkeeper.core.solana.programs import TOKEN_PROGRAM
from tollkeeper.sandbox.rpc_server import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    RpcServer,
    ServedRpcError,
)
from tollkeeper.sandbox.solana.chain import LAMPORTS_PER_SOL, NETWORK, EmbeddedSolanaChain
from tollkeeper.sandbox.solana.rpc import solana_rpc_app
from tollkeeper.sandbox.wallets import derive_solana_wallets

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.core.networks import Network
    from tollkeeper.sandbox.wallets import SolanaWallets

SLOT_SECONDS: Final = 0.4  # as a cluster's
_WATCH_SECONDS: Final = 0.02
BUYER_MICRO: Final = 1_000_000_000
_ENCODE: Final = msgspec.json.encode
_Parameter = TypeVar("_Parameter", str, int)


class SolanaNode(RpcServer):
    """`async with SolanaNode() as node:` serves the chain at `node.url` until the block ends."""

    def __init__(
        self,
        *,
        wallets: SolanaWallets | None = None,
        port: int = 0,
        slot_seconds: float | None = SLOT_SECONDS,
        network: Network = NETWORK,
        token_program: str = TOKEN_PROGRAM,
    ) -> None:
        """Build the chain, with everyone in the play on it; `slot_seconds` None lets slots pass by hand only."""
        self.wallets = wallets or derive_solana_wallets()
        self.chain = EmbeddedSolanaChain(network, token_program)
        self.rpc = solana_rpc_app(self.chain)
        super().__init__(self._answered, port=port, subscribe=self._subscribe)
        self._slot_seconds = slot_seconds
        self._clock: asyncio.Task[None] | None = None
        for payer in self.wallets.fee_payers:
            self.chain.airdrop(payer.address, 10 * LAMPORTS_PER_SOL)
        for buyer in (self.wallets.buyer, self.wallets.second_buyer):
            self.chain.open_account(buyer.address, BUYER_MICRO)
        self.chain.open_account(self.wallets.owner.address)

    async def start(self) -> str:
        """Serve. Returns the URL. Raises: OSError where the port is taken."""
        await super().start()
        if self._slot_seconds is not None:
            self._clock = asyncio.create_task(self._pass_slots(self._slot_seconds))
        return self.url

    async def stop(self) -> None:
        """Stop serving."""
        if self._clock is not None:
            self._clock.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._clock
            self._clock = None
        await super().stop()

    async def _pass_slots(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            self.chain.next_slot()

    def _answered(self, body: bytes) -> object:
        return self.rpc.answer_body(body)

    async def _subscribe(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        subscriptions: dict[int, asyncio.Task[None]] = {}
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    await self._told(socket, message.data, subscriptions)
        finally:
            for task in subscriptions.values():
                task.cancel()
            await asyncio.gather(*subscriptions.values(), return_exceptions=True)
        return socket

    async def _told(
        self, socket: web.WebSocketResponse, text: str, subscriptions: dict[int, asyncio.Task[None]]
    ) -> None:
        asked = None
        try:
            request = _request(text)
            if "id" not in request:  # a ping
                return
            asked = request["id"]
            result, watch = self._answer(socket, request, subscriptions)
        except ServedRpcError as error:
            await _say(socket, {"id": asked, "error": error.as_json()})
            return
        await _say(socket, {"id": asked, "result": result})
        if watch is not None:
            subscriptions[result] = asyncio.create_task(watch)

    def _answer(
        self, socket: web.WebSocketResponse, request: JsonObject, subscriptions: dict[int, asyncio.Task[None]]
    ) -> tuple[Any, Coroutine[Any, Any, None] | None]:
        """Return the answer, and what to watch from now on. Raises: RpcError."""
        method, params = request["method"], request.get("params") or []
        subscription = len(subscriptions) + 1
        if method == "slotSubscribe":
            return subscription, self._watch_slots(socket, subscription)
        if method == "signatureSubscribe":
            return subscription, self._watch_signature(socket, subscription, _first(params, str))
        if method in {"signatureUnsubscribe", "slotUnsubscribe"}:
            task = subscriptions.get(_first(params, int))
            return task is not None and task.cancel(), None
        raise ServedRpcError("Method not found", code=METHOD_NOT_FOUND)

    async def _watch_signature(self, socket: web.WebSocketResponse, subscription: int, signature: str) -> None:
        while (executed := self.chain.executed.get(signature)) is None:  # noqa: ASYNC110 - the chain tells nobody
            await asyncio.sleep(_WATCH_SECONDS)
        result = {"context": {"slot": executed.slot}, "value": {"err": executed.error}}
        await _notify(socket, "signatureNotification", subscription, result)

    async def _watch_slots(self, socket: web.WebSocketResponse, subscription: int) -> None:
        while True:
            slot = self.chain.slot
            await _notify(
                socket, "slotNotification", subscription, {"parent": slot - 1, "root": slot - 1, "slot": slot}
            )
            await asyncio.sleep(SLOT_SECONDS)


def _request(text: str) -> JsonObject:
    try:
        request = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ServedRpcError("parse error", code=PARSE_ERROR) from error
    if not isinstance(request, dict) or not isinstance(request.get("method"), str):
        raise ServedRpcError("invalid request", code=INVALID_REQUEST)
    return request


def _first(params: object, kind: type[_Parameter]) -> _Parameter:
    if isinstance(params, list) and params and isinstance(params[0], kind):
        return params[0]
    raise ServedRpcError("invalid parameters", code=INVALID_PARAMS)


async def _notify(socket: web.WebSocketResponse, method: str, subscription: int, result: object) -> None:
    await _say(socket, {"method": method, "params": {"result": result, "subscription": subscription}})


async def _say(socket: web.WebSocketResponse, body: JsonObject) -> None:
    await socket.send_str(_ENCODE({"jsonrpc": "2.0", **body}).decode())
