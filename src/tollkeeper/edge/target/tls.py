"""TLS to a target, between the network and the protocol that speaks over it (security A-42, performance 2).

An event loop's own TLS serves every kind of protocol and connection, and costs a small exchange twice what the cipher
takes. Here what was read becomes one piece of plain text, and what is written goes on a record at a time, and that is
all. Certificates, names and versions are for the context to judge (`pool.target_tls_context`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from typing import Final, Protocol, cast

from tollkeeper.edge.shared.turns import PARTS_AT_ONCE
from tollkeeper.edge.target.connection import rest_of

_RECORD_SIZE_BYTES: Final = 16 * 1024  # no TLS record holds more plain text
_RECORD_HEAD_BYTES: Final = 5
_CIPHERED_SIZE_BYTES: Final = _RECORD_SIZE_BYTES + 2048  # nor more cipher text (RFC 5246 6.2.3)
_RECORD_KINDS: Final = range(20, 25)
_ANSWERED_SIZE_BYTES: Final = 64 * 1024  # of what TLS answers by itself, for a target that takes nothing


class SecureSpeaker(Protocol):
    """Speaker over TLS: an `asyncio.Protocol` that is given the network's transport for all but writing."""

    def write_through(self, write: Callable[[bytes], None]) -> None:
        """Write by `write` from now on."""

    def rest(self) -> None:
        """Let others have their turn of the event loop before more is read."""

    def in_record(self, *, is_begun: bool) -> None:
        """From now on something is there behind all that was handed on, of a record whose end did not come; or no more.

        Said before what was read with it.
        """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport. Follows the handshake."""

    def data_received(self, data: bytes) -> None:
        """Take decrypted bytes."""

    def eof_received(self) -> bool | None:
        """Take note of TLS's own end."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Take note that the connection is lost. If TLS had not ended there is always an `exc`."""

    def pause_writing(self) -> None:
        """Write no more for now."""

    def resume_writing(self) -> None:
        """Go on writing."""


class Secured(asyncio.Protocol):
    """The client's side of TLS on one connection.

    OpenSSL is given a record at a time and gives one back, since its buffers keep the size that they once had: a
    connection that is kept would hold what a whole read took. It also leaves no record half read where nobody sees it.

    `established` is the handshake's: its result, an SSLError, or a ConnectionError where the connection ended before.
    """

    def __init__(self, context: ssl.SSLContext, server_name: str, speaker: SecureSpeaker) -> None:
        self.established: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._speaker = speaker
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._is_established = False
        self._begun = b""  # of a record whose head is not all there
        self._left_bytes = 0  # to come of a record whose head is there; what is there OpenSSL has, and has not read
        self._is_in_record = False  # as the speaker knows it
        self._is_held = False  # the target takes no more for now
        self._answered_bytes = 0  # while it takes none
        self._fault: Exception | None = None  # why the connection ends, where the network does not say
        self._network: asyncio.Transport

    def write(self, text: bytes) -> None:
        """Send `text`. Where TLS takes nothing, as within a second handshake, the connection ends."""
        parts = (text,) if len(text) <= _RECORD_SIZE_BYTES else _records_of(text)
        try:
            for part in parts:
                self._tls.write(part)
                self._network.write(self._outgoing.read())
        except ssl.SSLError as fault:
            self._break(fault)

    # What the network calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._network = cast("asyncio.Transport", transport)
        self._shake_hands()

    def data_received(self, data: bytes) -> None:
        """Decrypt what came, and hand it on."""
        if self._begun:
            data, self._begun = self._begun + data, b""
        if self._left_bytes or not self._is_established or _end_of_record(data, 0) != len(data):
            self._read_on(data)
            return
        self._incoming.write(data)
        try:
            text = self._tls.read(_RECORD_SIZE_BYTES)
        except ssl.SSLError as fault:
            self._hand_on([], fault.with_traceback(None), is_over=False)
            return
        if not text or self._is_in_record or self._outgoing.pending:
            self._hand_on([text], None, is_over=not text)
        else:
            self._speaker.data_received(text)

    def eof_received(self) -> None:
        """Fail: before TLS's own end somebody on the way may have cut the rest (RFC 9112, 9.8)."""
        if self._is_established:
            self._break(ssl.SSLEOFError("the connection ended without TLS's end"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Read what came before a reset, then tell the speaker."""
        if self._is_established:
            if exc is not None:
                for data in rest_of(self._network.get_extra_info("socket").fileno()):
                    self.data_received(data)
            self._speaker.write_through(self._network.write)  # no cycle is left for the collector to find
            self._speaker.connection_lost(exc or self._fault)
        elif not self.established.done():
            self.established.set_exception(self._fault or exc or ConnectionResetError())
            self.established.exception()

    def pause_writing(self) -> None:
        """Hold the speaker back: the network takes no more for now."""
        self._is_held, self._answered_bytes = True, 0
        self._speaker.pause_writing()

    def resume_writing(self) -> None:
        """Let the speaker go on writing."""
        self._is_held = False
        self._speaker.resume_writing()

    # Reading

    def _read_on(self, data: bytes) -> None:
        """Several records came, or a part of one, or such of a handshake."""
        texts: list[bytes] = []
        fault: ssl.SSLError | None = None
        is_over = False
        for _ in self._whole_records(data):
            if not self._is_established:
                self._shake_hands()
                if self._fault is not None:
                    return
                continue
            try:
                texts.append(self._tls.read(_RECORD_SIZE_BYTES))
                is_over = not texts[-1]
            except ssl.SSLWantReadError:
                pass  # it was no text: a new key, a ticket, a part of a handshake
            except ssl.SSLError as stopped:
                # Without its traceback: that names this frame, and would keep what was read until the collector comes.
                fault = stopped.with_traceback(None)
            if is_over or fault is not None:
                break
        if self._is_established:
            self._hand_on(texts, fault, is_over=is_over)

    def _whole_records(self, data: bytes) -> Iterator[None]:
        """Give OpenSSL what came; once for each record that is whole by that."""
        view, at = memoryview(data), 0
        while at < len(data):
            end = at + self._left_bytes if self._left_bytes else _end_of_record(data, at)
            if not end:
                self._begun = data[at:]
                return
            self._incoming.write(view[at:end])
            self._left_bytes = max(0, end - len(data))
            at = end
            if not self._left_bytes:
                yield

    def _hand_on(self, texts: list[bytes], fault: ssl.SSLError | None, *, is_over: bool) -> None:
        """Hand on the decrypted bytes, then what stops the reading: a `fault`, or TLS's end."""
        is_begun = bool(self._begun or self._left_bytes)
        if is_begun is not self._is_in_record:
            self._is_in_record = is_begun
            self._speaker.in_record(is_begun=is_begun)
        if len(texts) > PARTS_AT_ONCE:
            self._speaker.rest()
        self._flush()  # what answers a new key, or the alert
        if whole := b"".join(texts):
            self._speaker.data_received(whole)
        if fault is not None and not isinstance(fault, ssl.SSLWantReadError):
            self._break(fault)
        elif is_over and self._fault is None and not self._network.is_closing():
            self._speaker.eof_received()
            self._network.close()

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as fault:
            self._flush()  # the alert
            self._break(fault)
            return
        self._flush()
        self._is_established = True
        self._speaker.connection_made(self._network)
        self._speaker.write_through(self.write)
        if not self.established.done():
            self.established.set_result(None)

    def _flush(self) -> None:
        if self._outgoing.pending and not self._network.is_closing():
            if self._is_held:
                self._answered_bytes += self._outgoing.pending
            if self._answered_bytes > _ANSWERED_SIZE_BYTES:
                self._break(ssl.SSLError("the target asks TLS for answers, and takes none"))
            else:
                self._network.write(self._outgoing.read())

    def _break(self, fault: ssl.SSLError) -> None:
        self._fault = fault.with_traceback(None)  # else as above
        if self._network.get_write_buffer_size():  # a close would wait until the target takes it, if it ever does
            self._network.abort()
        else:
            self._network.close()


def _records_of(text: bytes) -> Iterator[memoryview]:
    """`text` in parts of which each is a record."""
    view = memoryview(text)
    for at in range(0, len(text), _RECORD_SIZE_BYTES):
        yield view[at : at + _RECORD_SIZE_BYTES]


def _end_of_record(data: bytes, at: int) -> int:
    """Return the end of the record that begins at `at`; 0 if not all of its head is there.

    Bytes that are no record count as one record, to the end of all of them.
    """
    if len(data) - at < _RECORD_HEAD_BYTES:
        return 0
    size_bytes = data[at + 3] << 8 | data[at + 4]
    if data[at] not in _RECORD_KINDS or data[at + 1] != 3 or size_bytes > _CIPHERED_SIZE_BYTES:
        return len(data)  # OpenSSL says what is wrong with it
    return at + _RECORD_HEAD_BYTES + size_bytes


async def connect_secure(
    context: ssl.SSLContext, server_name: str, speaker: SecureSpeaker, address: str, port: int
) -> None:
    """Connect `speaker` and do the handshake: `server_name` is what the certificate must be for.

    Raises ssl.SSLError, OSError.
    """
    loop = asyncio.get_running_loop()
    network, secured = await loop.create_connection(lambda: Secured(context, server_name, speaker), address, port)
    try:
        await secured.established
    except BaseException:
        network.abort()
        raise
