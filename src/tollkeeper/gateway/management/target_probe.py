"""The question whether a gate's target answers, asked when the gate is made or changed, and when its owner asks.

A request with the headers that the owner set for the target, on a connection of its own, by the rules of every call. It
charges nobody. A change asks with a HEAD and refuses nothing: what was seen is told as warnings (contract 3.4). An
owner's test asks as a buyer's call would, and tells what came back (contract 11).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.forwarding import VIA, encode_request_head, request_target
from tollkeeper.core.limits import PROXY_RESPONSE_SIZE_BYTES
from tollkeeper.edge.target.exchange import Exchange, TargetFailure
from tollkeeper.gateway.management.owner_bodies import TargetTested

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.core.http.heads import ResponseHead
    from tollkeeper.core.http.target_addresses import TargetUrl
    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.edge.target.forwarder import Forwarder

WAIT_SECONDS: Final = 3.0
TEST_SECONDS: Final = 10.0
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
_AGENT: Final = b"tollkeeper"
_SHOWN_LENGTH: Final = 200  # of a location
_PAYMENT_REQUIRED: Final = 402
_FAILS: Final = 'every paid call ends in a 502, and the call\'s credit is used unless onFailure is "restore"'


class _ProbeAnswer(Exchange):
    """The head of an answer and the size of its body, or why there is none."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.head: asyncio.Future[ResponseHead] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.size_bytes = 0

    def on_head(self, head: ResponseHead) -> None:
        if not self.head.done():
            self.head.set_result(head)

    def on_body(self, data: bytes) -> None:
        self.size_bytes += len(data)
        if self.size_bytes > PROXY_RESPONSE_SIZE_BYTES:
            self.on_end()

    def on_end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def on_failure(self, failure: TargetFailure) -> None:
        for one in (self.head, self.ended):
            if not one.done():
                one.set_exception(ApiError(failure.code, failure.message))
                one.exception()  # whoever waits for the head alone does not wait for the end

    def pause_sending(self) -> None: ...

    def resume_sending(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TargetProbe:
    """The way to targets that calls take, too."""

    forwarder: Forwarder

    async def warnings(
        self, target: TargetUrl, target_headers: Sequence[tuple[str, str]], tenant: str
    ) -> list[JsonObject]:
        """Tell what the owner should know of the target, in the answer to a create or update by `tenant`."""
        try:
            answer = (await self._exchange(target, "HEAD", target_headers, tenant, is_whole=False)).head.result()
        except TimeoutError:
            return [_silent(f"the target did not answer a HEAD within {WAIT_SECONDS:.0f} seconds")]
        except ApiError as error:  # UNAVAILABLE: a matter of ours, which says nothing of the target
            return [] if error.code is Code.UNAVAILABLE else [_silent(error.message)]
        if answer.status == _PAYMENT_REQUIRED:
            return [_warning(f"the target itself asks for payment (402): {_FAILS}")]
        location = next((value for name, value in answer.headers if name == b"location"), None)
        return [] if location is None or not 300 <= answer.status < 400 else [_redirect(answer.status, location)]

    async def test(
        self, target: TargetUrl, method: str, target_headers: Sequence[tuple[str, str]], tenant: str
    ) -> TargetTested:
        """Ask the target once, as a call without a body would. Raises: UPSTREAM_*, UNAVAILABLE."""
        began = time.monotonic_ns()
        try:
            answer = await self._exchange(target, method, target_headers, tenant, is_whole=True)
        except TimeoutError:
            message = f"the target did not answer within {TEST_SECONDS:.0f} seconds"
            raise ApiError(Code.UPSTREAM_TIMEOUT, message) from None
        head = answer.head.result()
        named = {name: value.decode("latin-1")[:_SHOWN_LENGTH] for name, value in head.headers}
        return TargetTested(
            head.status,
            named.get(b"content-type", ""),
            named.get(b"location", ""),
            min(answer.size_bytes, PROXY_RESPONSE_SIZE_BYTES),
            answer.size_bytes > PROXY_RESPONSE_SIZE_BYTES,
            (time.monotonic_ns() - began) // 1000,
        )

    async def _exchange(
        self, target: TargetUrl, method: str, target_headers: Sequence[tuple[str, str]], tenant: str, *, is_whole: bool
    ) -> _ProbeAnswer:
        """Raises: ApiError, TimeoutError."""
        owners = [(name.encode(), value.encode()) for name, value in target_headers]
        own = [(b"host", target.authority.encode("ascii")), (b"user-agent", _AGENT), (b"via", VIA)]
        if method in _WITH_BODY:
            own.append((b"content-length", b"0"))
        head = encode_request_head(method, request_target(target, b"", b""), [*own, *owners])
        if not self.forwarder.places.take(tenant):
            raise self.forwarder.crowding.refusal("calls", tenant)
        try:
            async with asyncio.timeout(TEST_SECONDS if is_whole else WAIT_SECONDS):
                connection = await self.forwarder.connect(target, tenant, fresh=True)
                try:
                    answer = _ProbeAnswer()
                    connection.send(answer, method, head)
                    await answer.head
                    if is_whole:
                        await answer.ended
                    return answer
                finally:
                    connection.abort()
        finally:
            self.forwarder.places.give_back(tenant)


def _silent(why: str) -> JsonObject:
    return _warning(f"{why}: until it answers, {_FAILS}")


def _redirect(status: int, location: bytes) -> JsonObject:
    where = location[:_SHOWN_LENGTH].decode("latin-1")
    return _warning(
        f"the target answers a HEAD with a redirect ({status}) to {where}: callers pay for the redirect, and again for "
        "the call that follows it; set targetUrl to the URL that answers"
    )


def _warning(message: str) -> JsonObject:
    return {"field": "targetUrl", "message": message}
