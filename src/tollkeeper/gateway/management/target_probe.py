"""The question whether a gate's target answers, and does not redirect, asked when the gate is made or changed.

A HEAD with the headers that the owner set for the target, on a connection of its own, by the rules of every call. It
changes nothing at the target, charges nobody, and refuses nothing: what was seen is told as warnings (contract 3.4).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.forwarding import VIA, encode_request_head, request_target
from tollkeeper.edge.target.exchange import Exchange, TargetFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.core.paygates.target_addresses import TargetUrl
    from tollkeeper.edge.shared.heads import ResponseHead
    from tollkeeper.edge.target.forwarder import Forwarder

WAIT_SECONDS: Final = 3.0
_AGENT: Final = b"tollkeeper"
_SHOWN_LENGTH: Final = 200  # of a location
_PAYMENT_REQUIRED: Final = 402
_FAILS: Final = 'every paid call ends in a 502, and the call\'s credit is used unless onFailure is "restore"'


class _ProbeAnswer(Exchange):
    """The head of an answer, or why there is none."""

    def __init__(self) -> None:
        self.head: asyncio.Future[ResponseHead] = asyncio.get_running_loop().create_future()

    def on_head(self, head: ResponseHead) -> None:
        if not self.head.done():
            self.head.set_result(head)

    def on_body(self, data: bytes) -> None: ...

    def on_end(self) -> None: ...

    def on_failure(self, failure: TargetFailure) -> None:
        if not self.head.done():
            self.head.set_exception(ApiError(failure.code, failure.message))

    def pause_sending(self) -> None: ...

    def resume_sending(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TargetProbe:
    """The way to targets that calls take, too."""

    forwarder: Forwarder

    async def warnings(
        self, target: TargetUrl, target_headers: Sequence[tuple[str, str]], tenant: str
    ) -> list[dict[str, Any]]:
        """Tell what the owner should know of the target, in the answer to a create or update by `tenant`."""
        try:
            answer = await self._ask(target, target_headers, tenant)
        except TimeoutError:
            return [_silent(f"the target did not answer a HEAD within {WAIT_SECONDS:.0f} seconds")]
        except ApiError as error:  # UNAVAILABLE: a matter of ours, which says nothing of the target
            return [] if error.code is Code.UNAVAILABLE else [_silent(error.message)]
        if answer.status == _PAYMENT_REQUIRED:
            return [_warning(f"the target itself asks for payment (402): {_FAILS}")]
        location = next((value for name, value in answer.headers if name == b"location"), None)
        return [] if location is None or not 300 <= answer.status < 400 else [_redirect(answer.status, location)]

    async def _ask(self, target: TargetUrl, target_headers: Sequence[tuple[str, str]], tenant: str) -> ResponseHead:
        """Raises: ApiError, TimeoutError."""
        owners = [(name.encode(), value.encode()) for name, value in target_headers]
        own = [(b"host", target.authority.encode("ascii")), (b"user-agent", _AGENT), (b"via", VIA)]
        head = encode_request_head("HEAD", request_target(target, b"", b""), [*own, *owners])
        if not self.forwarder.places.take(tenant):
            raise self.forwarder.crowding.refusal("calls", tenant)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                connection = await self.forwarder.connect(target, tenant, fresh=True)
                try:
                    answer = _ProbeAnswer()
                    connection.send(answer, "HEAD", head)
                    return await answer.head
                finally:
                    connection.abort()
        finally:
            self.forwarder.places.give_back(tenant)


def _silent(why: str) -> dict[str, Any]:
    return _warning(f"{why}: until it answers, {_FAILS}")


def _redirect(status: int, location: bytes) -> dict[str, Any]:
    where = location[:_SHOWN_LENGTH].decode("latin-1")
    return _warning(
        f"the target answers a HEAD with a redirect ({status}) to {where}: callers pay for the redirect, and again for "
        "the call that follows it; set targetUrl to the URL that answers"
    )


def _warning(message: str) -> dict[str, Any]:
    return {"field": "targetUrl", "message": message}
