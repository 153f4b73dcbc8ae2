"""TLS to a target, between the network and the protocol that speaks over it (security A-42, performance 19).

An event loop's own TLS serves every kind of protocol and connection, and costs a small exchange twice what the cipher
takes. Here a read becomes one piece of plain text and a write one piece of cipher text, and that is all. Certificates,
names and versions are for the context to judge (`pool.target_tls_context`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, Protocol, cast

from tollkeeper.edge.turns import PARTS_AT_ONCE
from tollkeeper.edge.unread import rest_of

_RECORD_SIZE_BYTES: Final = 16 * 1024  # no TLS record holds more plain text


class SecureSpeaker(Protocol):
    """Who speaks over TLS: an `asyncio.Protocol` to which the network's transport is given for all but writing."""

    def write_through(self, write: Callable[[bytes], None]) -> None:
        """Write by `write` from now on."""

    def rest(self) -> None:
        """Let others have their turn of the event loop before more is read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`. Follows the handshake."""

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""

    def eof_received(self) -> bool | None:
        """See `asyncio.Protocol`. TLS's own end."""

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`. Where TLS had not ended there is always an `exc`."""

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""


class Secured(asyncio.Protocol):
    """The client's side of TLS on one connection.

    `established` is the handshake's: its result, an SSLError, or a ConnectionError where the connection ended before.
    """

    def __init__(self, context: ssl.SSLContext, server_name: str, speaker: SecureSpeaker) -> None:
        self.established: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._speaker = speaker
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._is_established = False
        self._fault: Exception | None = None  # why the connection ends, where the network does not say
        self._network: asyncio.Transport

    def write(self, text: bytes) -> None:
        """Send `text`. Where TLS takes nothing, as within a second handshake, the connection ends."""
        try:
            sent = self._tls.write(text)
            while sent < len(text):  # a record at a time
                sent += self._tls.write(memoryview(text)[sent:])
        except ssl.SSLError as fault:
            self._break(fault)
            return
        self._network.write(self._outgoing.read())

    # What the network calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._network = cast("asyncio.Transport", transport)
        self._shake_hands()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        incoming = self._incoming
        incoming.write(data)
        if not self._is_established:
            self._shake_hands()
            return
        try:
            text = self._tls.read(_RECORD_SIZE_BYTES)
        except ssl.SSLError as fault:
            self._stop_reading(fault)
            return
        if incoming.pending or not text:
            self._read_on(text)
            return
        if self._outgoing.pending:
            self._flush()
        self._speaker.data_received(text)

    def eof_received(self) -> None:
        """See `asyncio.Protocol`. Before TLS's own end somebody on the way may have cut the rest (RFC 9112, 9.8)."""
        if self._is_established:
            self._break(ssl.SSLEOFError("the connection ended without TLS's end"))

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
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
        """See `asyncio.Protocol`."""
        self._speaker.pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._speaker.resume_writing()

    # Reading

    def _read_on(self, text: bytes) -> None:
        """Several records came, or the beginning of one, or the last: `text` is the first's, empty for TLS's end."""
        texts = [text]
        fault: ssl.SSLError | None = None
        try:
            while texts[-1] and self._incoming.pending:
                texts.append(self._tls.read(_RECORD_SIZE_BYTES))
        except ssl.SSLError as stopped:
            # Without its traceback: that names this frame, and so would keep what was read until the collector comes.
            fault = stopped.with_traceback(None)
        if len(texts) > PARTS_AT_ONCE:
            self._speaker.rest()
        if whole := b"".join(texts):
            self._speaker.data_received(whole)
        if fault is not None:
            self._stop_reading(fault)
            return
        self._flush()
        if not texts[-1] and not self._network.is_closing():
            self._speaker.eof_received()
            self._network.close()

    def _stop_reading(self, fault: ssl.SSLError) -> None:
        """Nothing more can be read now, or at all."""
        self._flush()  # what answers a new key, or the alert
        if not isinstance(fault, ssl.SSLWantReadError):
            self._break(fault)

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
        if self._incoming.pending:
            self.data_received(b"")

    def _flush(self) -> None:
        if self._outgoing.pending and not self._network.is_closing():
            self._network.write(self._outgoing.read())

    def _break(self, fault: ssl.SSLError) -> None:
        self._fault = fault.with_traceback(None)  # else as above
        if self._network.get_write_buffer_size():  # a close would wait until the target takes it, if it ever does
            self._network.abort()
        else:
            self._network.close()


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
