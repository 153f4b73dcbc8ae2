"""One paid call at its target: what is sent there, and the answer that comes back (contract 4.7).

Waits for the target, 600 s from the last byte of the request (before it for as long, in all, where it does not take
what comes: `edge.target.relay`), and before that for a body that is signed: a mebibyte of it is held, for a moment
twice, and hashed in the loop. A body that is all there is sent at once (reading pauses behind 64 KiB; one look at the
socket may bring more), others flow as fast as the target takes them; of one that it does not take up to 32 MiB are
held, 64 MiB of all, to see whether its caller has left (`edge.server.client_liveness`). The target's name is looked up
for 5 s at most, a connection made for 10, both anew where a kept one had closed. A long answer waits 600 s more for the
disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tollkeeper.edge.target.relay import RelayRequest
from tollkeeper.gateway.call import headers, request_facts
from tollkeeper.gateway.call.driver import Reply
from tollkeeper.gateway.call.stream import StreamedParts
from tollkeeper.gateway.call.target_signature import BodyAhead

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from tollkeeper.core.http.heads import ResponseHead
    from tollkeeper.edge.server.call import BodySource
    from tollkeeper.edge.target.relay import Relay
    from tollkeeper.edge.target.spool import SpooledBody
    from tollkeeper.gateway.call.state import PaidCall
    from tollkeeper.storage.ledger.purchase_rows import Purchase


class ForwardedAnswer(msgspec.Struct, frozen=True):
    """The answer of a target: its body whole in memory, on disk, or as it comes."""

    head: ResponseHead
    body: list[bytes] | SpooledBody | AsyncIterator[bytes]
    length_bytes: int | None  # None where it comes in chunks


class Forwarding:
    """The way of one call to its target and back: its relay's `AnswerOwner`, and `PartsOwner` of a stream.

    `close` it where its answer is not wanted any more, and behind the answer.
    """

    __slots__ = ("_ahead", "_answer", "_call", "_on_disk", "_purchase", "_relay")

    def __init__(self, call: PaidCall, purchase: Purchase) -> None:
        self._call = call
        self._purchase = purchase
        self._answer: Reply[ForwardedAnswer] = Reply()
        self._relay: Relay | BodyAhead | None = None  # reads what is to be signed, then asks the target
        self._ahead: BodyAhead | None = None  # holds what was read to be signed, until the call ends
        self._on_disk: SpooledBody | None = None  # the answer's body

    def answer(self) -> Awaitable[ForwardedAnswer]:
        """Send the request, signed where the gate signs; await the answer. Raises: UPSTREAM_*, and what we refuse."""
        call = self._call
        http = call.http
        body = request_facts.body_of(http, call.context.body_limit_bytes, self._break_off)
        if call.gate.wire.secrets:
            return self._answer_to_signed(body)
        return self._send(body, http.head.content_length)

    async def _answer_to_signed(self, body: bytes | BodySource) -> ForwardedAnswer:
        call, http = self._call, self._call.http
        length, signed = http.head.content_length, body if isinstance(body, bytes) else None
        if not isinstance(body, bytes):
            signed, body = await self._read_ahead(body, length)
        random_bytes = call.context.random_bytes
        signature = headers.signature_of(http, call.gate, call.facts, self._purchase, signed, random_bytes)
        return await self._send(body, len(body) if isinstance(body, bytes) else length, signature)

    def _send(self, body: bytes | BodySource, length: int | None, signature: bytes = b"") -> Reply[ForwardedAnswer]:
        """Send the request; return the reply that tells its answer."""
        call, gate = self._call, self._call.gate
        assert gate.target is not None  # noqa: S101 - a file is handed over
        context, http = call.context, call.http
        client = context.limit.client_of(http)
        head = headers.target_head(http, gate, call.facts, self._purchase, client, length, signature=signature)
        request = RelayRequest(gate.use, gate.target, http.method, head, body, length)
        if gate.gate.stream:
            streamed = StreamedParts(self)
            self._relay = relay = context.forwarder.stream(request, streamed)
            streamed.follow(relay)
            relay.start()
        else:
            self._relay = whole = context.forwarder.relay(request, self)
            whole.start()
        return self._answer

    async def _read_ahead(self, body: BodySource, length: int | None) -> tuple[bytes | None, bytes | BodySource]:
        """Read a body that is signed: the part that is covered, None for one too long; and the body to forward."""
        context, reader = self._call.context, _BodyReader()
        self._relay = self._ahead = ahead = BodyAhead(
            body, reader, reader.on_read, context.forwarder, context.ahead, self._call.gate.use.tenant
        )
        ahead.start(length)
        try:
            return await reader.read
        finally:
            self._relay = None  # the body is read, its reader done

    def close(self) -> None:
        """Let go of the target, of what was read to be signed, and of an answer on disk."""
        relay, ahead = self._relay, self._ahead
        self._relay = self._ahead = None  # they name this, in a circle
        if self._on_disk is not None:
            self._on_disk.close()
        if relay is not None:
            relay.close()
        if ahead is not None:
            ahead.close()

    def on_answer(self, head: ResponseHead, body: list[bytes] | SpooledBody, size_bytes: int) -> None:
        """Take the whole answer."""
        self._relay = None
        if not isinstance(body, list):
            self._on_disk = body
        self._call.context.answers.add(self._answer.tell, ForwardedAnswer(head, body, size_bytes))

    def on_stream(self, head: ResponseHead, parts: AsyncIterator[bytes]) -> None:
        """Take the answer as it comes."""
        self._answer.tell(ForwardedAnswer(head, parts, head.framing.declared_bytes))

    def on_refusal(self, error: BaseException) -> None:
        """Learn why there is no answer."""
        self._answer.fail(error)

    def _break_off(self, error: Exception) -> None:
        """Send no more of the request's body. The relay is told, which knows whether the answer has begun."""
        if self._relay is None:
            self.on_refusal(error)
        else:
            self._relay.refuse(error)


class _BodyReader:
    """Owner of a body that is read to be signed (`target_signature.BodyOwner`)."""

    __slots__ = ("read",)

    def __init__(self) -> None:
        self.read: Reply[tuple[bytes | None, bytes | BodySource]] = Reply()

    def on_read(self, signed: bytes | None, body: bytes | BodySource) -> None:
        """Learn that the body was read, as far as that is signed."""
        self.read.tell((signed, body))

    def on_refusal(self, error: BaseException) -> None:
        """Learn why the body does not come."""
        self.read.fail(error)
