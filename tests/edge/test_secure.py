"""TLS to a target, record by record: how records are cut, what ends it, what is told where it ends too early."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import gc
import os
import ssl
import struct
import termios
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import ClassVar

import pytest

from tests.edge.forwarded import ForwardRequest, forward
from tests.edge.targets import OK, Connection, certificate, forwarder, serves, sized, target
from tests.edge.test_calls import until
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.target_addresses import TargetUrl
from tollkeeper.edge.target.addresses import Resolver
from tollkeeper.edge.target.connection import TargetConnection
from tollkeeper.edge.target.forwarder import Forwarder
from tollkeeper.edge.target.pool import target_tls_context
from tollkeeper.edge.target.relay import ForwardLimits
from tollkeeper.edge.target.tls import Secured, connect_secure

NAME = "good.example"


class Cipher:
    """The server's side of TLS by hand, so that a test has every byte of it."""

    def __init__(self, connection: Connection, context: ssl.SSLContext) -> None:
        self.connection = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def shake_hands(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.connection.send(self._outgoing.read())
                await self._more()
            else:
                await self.connection.send(self._outgoing.read())
                return

    async def request(self) -> bytes:
        """A request's head."""
        text = b""
        while not text.endswith(b"\r\n\r\n"):
            text += await self.text()
        return text

    async def text(self) -> bytes:
        """What comes next."""
        while True:
            try:
                return self.tls.read(65536)
            except ssl.SSLWantReadError:
                await self._more()

    def records(self, *texts: bytes) -> bytes:
        """Each of `texts` in records of its own."""
        for text in texts:
            self.tls.write(text)
        return self._outgoing.read()

    def end(self) -> bytes:
        """TLS's own end."""
        with contextlib.suppress(ssl.SSLError):
            self.tls.unwrap()
        return self._outgoing.read()

    async def _more(self) -> None:
        read = await self.connection.reader.read(65536)
        if not read:
            raise EOFError
        self._incoming.write(read)


def _asked(url: TargetUrl, method: str = "GET") -> ForwardRequest:
    return ForwardRequest(url, method, [])


async def _here(_host: str, _port: int) -> list[str]:
    return ["127.0.0.1"]


@contextlib.asynccontextmanager
async def _behind(
    says: Callable[[Cipher], Awaitable[None]], folder: Path, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> AsyncIterator[tuple[Forwarder, TargetUrl]]:
    """A target whose TLS is in the test's hands."""
    server, client = certificate(folder, NAME)
    server.maximum_version = version

    async def behave(connection: Connection) -> None:
        cipher = Cipher(connection, server)
        await cipher.shake_hands()
        await says(cipher)

    async with target(behave) as there, forwarder(Resolver(allow_private=True, lookup=_here), client) as edge:
        yield edge, TargetUrl("https", NAME, there.port, "/", "")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("size_bytes", [1, 7, 100_000])
async def test_records_may_be_cut_anywhere_and_come_together(
    version: ssl.TLSVersion, size_bytes: int, tmp_path: Path
) -> None:
    async def says(cipher: Cipher) -> None:
        for _ in range(3):
            await cipher.request()
            sent = cipher.records(OK, b"content-length: 9\r\n", b"\r\n", b"one", b"two", b"six")
            for start in range(0, len(sent), size_bytes):
                await cipher.connection.send(sent[start : start + size_bytes])
                await asyncio.sleep(0)
        await cipher.connection.wait_closed()

    async with _behind(says, tmp_path, version) as (edge, url):
        for _ in range(3):
            assert (await forward(edge, _asked(url), b"")).body == b"onetwosix"


class Listener(asyncio.Protocol):
    """Who speaks over TLS, and says nothing."""

    def __init__(self) -> None:
        self.heard = b""
        self.rests = 0

    def write_through(self, write: Callable[[bytes], None]) -> None: ...

    def rest(self) -> None:
        self.rests += 1

    def in_record(self, *, is_begun: bool) -> None: ...

    def data_received(self, data: bytes) -> None:
        self.heard += data


async def test_behind_many_tiny_records_others_have_their_turn(tmp_path: Path) -> None:
    server, client = certificate(tmp_path, NAME)

    async def behave(connection: Connection) -> None:
        cipher = Cipher(connection, server)
        await cipher.shake_hands()
        await connection.send(cipher.records(*[b"x"] * 3000))
        await asyncio.sleep(5)

    async with target(behave) as there:
        listener = Listener()
        await connect_secure(client, NAME, listener, "127.0.0.1", there.port)
        while len(listener.heard) < 3000:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
        assert listener.rests


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_large_bodies_pass_both_ways(version: ssl.TLSVersion, tmp_path: Path) -> None:
    server, client = certificate(tmp_path, NAME)
    server.maximum_version = version
    large = bytes(range(256)) * 32_768  # 8 MiB

    async def behave(connection: Connection) -> None:
        _, body = await connection.request()
        await asyncio.sleep(0.2)  # what was sent meanwhile waits
        await connection.send(OK + b"content-length: %d\r\n\r\n" % len(body) + body)
        await connection.wait_closed()

    async with (
        target(behave, tls=server) as there,
        forwarder(Resolver(allow_private=True, lookup=_here), client) as edge,
    ):
        url = TargetUrl("https", NAME, there.port, "/", "")
        answer = await forward(edge, _asked(url, "POST"), large)
        body = answer.body
        assert not isinstance(body, bytes), "eight mebibytes go to the disk"
        read = b"".join([part async for part in body])
        assert read == large
        assert there.bodies == [large]


@pytest.mark.parametrize(
    "whole", [b"content-length: 3\r\n\r\none", b"transfer-encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n"]
)
async def test_an_answer_that_says_where_it_ends_needs_no_end_of_tls(whole: bytes, tmp_path: Path) -> None:
    async def says(cipher: Cipher) -> None:
        await cipher.request()
        await cipher.connection.send(cipher.records(OK + whole))

    async with _behind(says, tmp_path) as (edge, url):
        assert (await forward(edge, _asked(url), b"")).body == b"one"


async def test_an_answer_that_ends_with_the_connection_ends_with_the_end_of_tls(tmp_path: Path) -> None:
    async def says(cipher: Cipher) -> None:
        await cipher.request()
        await cipher.connection.send(cipher.records(OK + b"\r\n", b"one", b"two") + cipher.end())

    async with _behind(says, tmp_path) as (edge, url):
        assert (await forward(edge, _asked(url), b"")).body == b"onetwo"


async def _assert_refused_as_invalid(edge: Forwarder, url: TargetUrl) -> None:
    with pytest.raises(ApiError) as refusal:
        await forward(edge, _asked(url), b"")
    assert refusal.value.code is Code.UPSTREAM_INVALID
    assert edge.pool.open_count == 0


@pytest.mark.parametrize("cut", ["behind a record", "within a record", "reset"])
async def test_an_answer_that_somebody_on_the_way_may_have_cut_is_refused(cut: str, tmp_path: Path) -> None:
    async def says(cipher: Cipher) -> None:
        await cipher.request()
        sent = cipher.records(OK + b"\r\n", b"one", b"two")
        await cipher.connection.send(sent[:-5] if cut == "within a record" else sent)
        if cut == "reset":
            cipher.connection.reset()

    async with _behind(says, tmp_path) as (edge, url):
        await _assert_refused_as_invalid(edge, url)


async def test_what_is_not_a_record_ends_the_exchange_behind_what_came_whole(tmp_path: Path) -> None:
    async def says(cipher: Cipher) -> None:
        await cipher.request()
        await cipher.connection.send(cipher.records(OK + b"content-length: 6\r\n\r\none") + b"not a record at all")
        await cipher.connection.wait_closed()

    async with _behind(says, tmp_path) as (edge, url):
        await _assert_refused_as_invalid(edge, url)


@pytest.mark.parametrize("ends", ["without TLS's end", "with what is no record", "with an alert", "in an answer"])
async def test_a_target_that_ends_and_takes_no_more_of_the_request_is_not_waited_for(ends: str, tmp_path: Path) -> None:
    async def says(cipher: Cipher) -> None:
        connection = cipher.connection
        await connection.reader.read(1)
        await asyncio.sleep(0.2)  # what was sent meanwhile waits
        if ends == "with what is no record":
            await connection.send(b"not a record at all")
        elif ends == "with an alert":
            await connection.send(b"\x15\x03\x03\x00\x02\x02\x28")
        else:
            if ends == "in an answer":
                await connection.send(cipher.records(OK + b"content-length: 6\r\n\r\none"))
            connection.writer.write_eof()
        await asyncio.sleep(30)  # and reads nothing

    async with _behind(says, tmp_path) as (edge, url):
        with pytest.raises(ApiError) as refusal:
            async with asyncio.timeout(10):
                await forward(edge, _asked(url, "POST"), bytes(16 * 1024 * 1024))
        is_heard = ends == "in an answer"
        assert refusal.value.code is (Code.UPSTREAM_INVALID if is_heard else Code.UPSTREAM_UNREACHABLE)
        assert edge.pool.open_count == 0


@pytest.mark.parametrize("end", [None, -1], ids=["in a whole record", "in the beginning of one"])
async def test_a_kept_connection_that_is_spoken_to_is_dropped(end: int | None, tmp_path: Path) -> None:
    is_idle, heard = asyncio.Event(), asyncio.Event()

    async def says(cipher: Cipher) -> None:
        await cipher.request()
        await cipher.connection.send(cipher.records(sized(b"one")))
        await is_idle.wait()
        await cipher.connection.send(cipher.records(sized(b"for nobody"))[:end])
        await cipher.connection.wait_closed()
        heard.set()

    async with _behind(says, tmp_path) as (edge, url):
        assert (await forward(edge, _asked(url), b"")).body == b"one"
        assert edge.pool.idle_count == 1
        is_idle.set()
        async with asyncio.timeout(5):
            await heard.wait()
        assert edge.pool.idle_count == edge.pool.open_count == 0


@pytest.mark.parametrize("begun_bytes", [1, 5, 6, -1])
async def test_the_beginning_of_a_record_behind_an_answer_spoils_the_connection(
    begun_bytes: int, tmp_path: Path
) -> None:
    """Its end would come with the next exchange, as the answer to that."""
    asked: list[bytes] = []

    async def says(cipher: Cipher) -> None:
        asked.append(await cipher.request())
        answer, unasked = cipher.records(sized(b"one")), cipher.records(sized(b"for nobody"))
        await cipher.connection.send(answer + unasked[:begun_bytes])
        asked.append(await cipher.request())
        await cipher.connection.send(unasked[begun_bytes:])

    async with _behind(says, tmp_path) as (edge, url):
        assert [(await forward(edge, _asked(url), b"")).body for _ in range(3)] == [b"one"] * 3
    assert len(asked) == 3


_MALLINFO2_FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _Mallinfo2(ctypes.Structure):
    """What glibc knows of its heap; OpenSSL's memory is none of Python's."""

    _fields_: ClassVar = [(name, ctypes.c_size_t) for name in _MALLINFO2_FIELDS]


def _allocated_bytes() -> int:
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _Mallinfo2
    gc.collect()
    known = ask()
    return int(known.uordblks + known.hblkhd)


async def test_a_kept_connection_holds_little_of_what_it_carried(tmp_path: Path) -> None:
    """A mebibyte each way, and then it waits for use."""
    count, large = 12, bytes(1024 * 1024)
    ciphers: list[Cipher] = []

    async def says(cipher: Cipher) -> None:
        ciphers.append(cipher)  # what the target's side holds stays
        left_bytes = len(large)
        while left_bytes > 0:
            left_bytes -= len(await cipher.text())
        await cipher.connection.send(cipher.records(sized(large)))
        await cipher.connection.wait_closed()

    async with _behind(says, tmp_path) as (edge, url):
        for answer in await asyncio.gather(*(forward(edge, _asked(url, "POST"), large) for _ in range(count))):
            assert answer.body == large
            answer.close()
        del answer
        assert edge.pool.idle_count == count
        await asyncio.sleep(0.2)
        kept_bytes = _allocated_bytes()
        edge.pool.renew()
        await until(lambda: not edge.pool.open_count)
        await asyncio.sleep(0.2)
        assert (kept_bytes - _allocated_bytes()) / count < 100 * 1024
    assert len(ciphers) == count


def _openssl() -> ctypes.CDLL:
    """The library that Python's `ssl` is linked to."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return ctypes.CDLL(next(line.split()[-1] for line in maps if "libssl" in line))


async def test_a_target_that_asks_for_new_keys_and_takes_none_is_not_answered_for_ever(tmp_path: Path) -> None:
    """Each of its requests has an answer, which would wait in memory as long as the call does."""
    ask_for_keys = _openssl().SSL_key_update
    ask_for_keys.argtypes = [ctypes.c_void_p, ctypes.c_int]
    is_over = asyncio.Event()

    async def says(cipher: Cipher) -> None:
        connection = cipher.connection
        await connection.reader.read(1)
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]  # asyncio's name for less
        await connection.send(cipher.records(OK + b"content-length: 100000\r\n\r\n"))
        own = cipher.tls._sslobj  # type: ignore[attr-defined]  # noqa: SLF001 - Python itself cannot ask
        of_openssl = ctypes.c_void_p.from_address(id(own) + object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p))
        for _ in range(100):
            for _ in range(100):
                cipher.tls.write(b"x")
                assert ask_for_keys(of_openssl, 1) == 1
            await connection.send(cipher.records(b"x"))
        await is_over.wait()

    async with _behind(says, tmp_path) as (edge, url):
        with pytest.raises(ApiError) as refusal:
            async with asyncio.timeout(10):
                await forward(edge, _asked(url, "POST"), bytes(16 * 1024 * 1024))
        is_over.set()
        assert refusal.value.code is Code.UPSTREAM_INVALID
        assert edge.pool.open_count == 0


async def test_a_connection_that_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    async def says(cipher: Cipher) -> None:
        await cipher.request()
        await cipher.connection.send(cipher.records(sized(b"one", b"connection: close")))
        await cipher.connection.wait_closed()

    async with _behind(says, tmp_path) as (edge, url):
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                assert (await forward(edge, _asked(url), b"")).body == b"one"
            await until(lambda: not any(isinstance(one, Secured | TargetConnection) for one in gc.get_objects()))
        finally:
            gc.enable()


async def test_what_was_read_is_kept_by_nobody(tmp_path: Path) -> None:
    """A record that is not all there ends a read by an exception, which must not keep what came before it."""
    answer = sized(bytes(500_000))

    async def says(cipher: Cipher) -> None:
        for _ in range(3):
            await cipher.request()
            sent = cipher.records(*(answer[start : start + 10_000] for start in range(0, len(answer), 10_000)))
            for start in range(0, len(sent), 70_000):
                await cipher.connection.send(sent[start : start + 70_000])
                await asyncio.sleep(0.001)
        await cipher.connection.wait_closed()

    async with _behind(says, tmp_path) as (edge, url):
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                assert (await forward(edge, _asked(url), b"")).status == 200
            held = [one for one in gc.get_objects() if isinstance(one, ssl.SSLWantReadError)]
            assert [one for one in held if one.__traceback__ is not None] == []
        finally:
            gc.enable()


@pytest.mark.parametrize("when", ["before a byte", "after the first answer of the handshake", "never"])
async def test_a_handshake_that_ends_or_never_does_reaches_no_target(when: str, tmp_path: Path) -> None:
    _, client = certificate(tmp_path, NAME)

    async def behave(connection: Connection) -> None:
        if when != "before a byte":
            await connection.reader.read(65536)
        if when == "after the first answer of the handshake":
            await connection.send(b"\x16\x03\x03\x00\x7a")  # the beginning of a record
        elif when == "never":
            await connection.wait_closed()

    async with target(behave) as there, forwarder(Resolver(allow_private=True, lookup=_here), client) as edge:
        request = _asked(TargetUrl("https", NAME, there.port, "/", ""))
        with pytest.raises(ApiError) as refusal:
            await forward(edge, request, b"", limits=ForwardLimits(response_seconds=1))
        assert refusal.value.code in {Code.UPSTREAM_UNREACHABLE, Code.UPSTREAM_TIMEOUT}
        async with asyncio.timeout(5):
            await there.lost.wait()
        assert edge.pool.open_count == 0


@pytest.mark.parametrize("ends", ["closed", "reset"])
async def test_where_one_address_ends_before_the_handshake_the_next_one_is_tried(ends: str, tmp_path: Path) -> None:
    """As what balances the load does while nothing is behind it."""
    server, client = certificate(tmp_path, NAME)

    async def behave(connection: Connection) -> None:
        await connection.reader.read(65536)
        if ends == "reset":
            connection.reset()

    async def both(_host: str, _port: int) -> list[str]:
        return ["127.0.0.1", "127.0.0.2"]

    async with (
        contextlib.AsyncExitStack() as stack,
        forwarder(Resolver(allow_private=True, lookup=both), client) as edge,
    ):
        while True:
            there = await stack.enter_async_context(target(serves(sized(b"one")), tls=server, host="127.0.0.2"))
            with contextlib.suppress(OSError):  # its port may be taken at the other address
                empty = await stack.enter_async_context(target(behave, port=there.port))
                break
        answer = await forward(edge, _asked(TargetUrl("https", NAME, there.port, "/", "")), b"")
        assert (answer.body, empty.connections) == (b"one", 1)


@pytest.mark.parametrize(
    ("version", "command"), [("-tls1_3", "K"), ("-tls1_3", "k"), ("-tls1_2", "r"), ("-tls1_2", "R")]
)
async def test_new_keys_are_taken_and_a_new_handshake_too(version: str, command: str, tmp_path: Path) -> None:
    """OpenSSL's own server: K renews keys and asks for ours, k renews its own, r and R ask for a new handshake."""
    certificate(tmp_path, NAME)
    client = target_tls_context()
    client.load_verify_locations(tmp_path / f"{NAME}.pem")
    read_end, write_end = os.pipe()
    server = await asyncio.create_subprocess_exec(
        *("openssl", "s_server", version, "-accept", "127.0.0.1:0", "-naccept", "1"),
        *("-cert", tmp_path / f"{NAME}.pem", "-key", tmp_path / f"{NAME}.key"),
        stdin=read_end,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert server.stdout is not None
    try:
        async with asyncio.timeout(20), forwarder(Resolver(allow_private=True, lookup=_here), client) as edge:
            while not (line := await server.stdout.readline()).startswith(b"ACCEPT"):
                pass
            port = int(line.rpartition(b":")[2])
            asked = _asked(TargetUrl("https", NAME, port, "/", ""))
            for number in range(3):
                asking = asyncio.create_task(forward(edge, asked, b""))
                while (line := await server.stdout.readline()) != b"\r\n":
                    assert line, "the server has ended"
                for lines in (f"{command}\n", f"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{number}\n"):
                    os.write(write_end, lines.encode())
                    await until(lambda: not unread_bytes(read_end))  # a command is one only at the start of a read
                assert (await asking).body == b"%d\n" % number
                await asyncio.sleep(0.2)  # a connection on which handshakes still come is not used again
            assert edge.pool.open_count == 1
    finally:
        with contextlib.suppress(ProcessLookupError):
            server.kill()
        await server.wait()
        os.close(read_end)
        os.close(write_end)


def unread_bytes(pipe: int) -> int:
    """How much in the pipe nobody has read yet."""
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(count)
