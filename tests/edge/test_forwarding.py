"""A forwarded call on real sockets: what the target gets, what the caller gets, when it ends (contract 4.5, 4.7)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog

from tests.core.test_forwarding import STRIPPED, spellings
from tests.edge.forwarded import ForwardRequest, forward, forward_streamed
from tests.edge.targets import (
    OK,
    Connection,
    Target,
    answers,
    certificate,
    forwarder,
    nothing_more_can_be_opened,
    serves,
    sized,
    target,
)
from tests.edge.test_calls import until
from tests.storage.test_files import no_file_larger_than
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.forwarding import gateway_headers
from tollkeeper.core.http.heads import REQUEST_RULES
from tollkeeper.core.http.target_addresses import TargetUrl, check_target_url
from tollkeeper.edge.shared.nothing_sent import NothingSentError
from tollkeeper.edge.target.addresses import Resolver
from tollkeeper.edge.target.forwarder import Forwarder
from tollkeeper.edge.target.relay import ForwardLimits
from tollkeeper.edge.target.spool import THREADS, Spool, SpooledBody, SpoolRoom

CANARY = b"canary-5f1d"


def get(at: TargetUrl, method: str = "GET", **parts: object) -> ForwardRequest:
    return ForwardRequest(at, method, [], **parts)  # type: ignore[arg-type]  # a table of overrides


async def parts_of(*parts: bytes, pause_seconds: float = 0) -> AsyncIterator[bytes]:
    for part in parts:
        await asyncio.sleep(pause_seconds)
        yield part


async def refusal_of(
    edge: Forwarder, request: ForwardRequest, body: bytes | AsyncIterator[bytes] = b"", **limits: float
) -> ApiError:
    with pytest.raises(ApiError) as refusal:
        await forward(edge, request, body, limits=ForwardLimits(**limits))  # type: ignore[arg-type]  # as get
    return refusal.value


# What the target gets


async def test_no_stripped_header_leaks_in_any_spelling() -> None:
    written = [spelling for name in STRIPPED for spelling in spellings(name)]
    taken = {REQUEST_RULES[one].name: one for one in written if not REQUEST_RULES[one].is_never}  # the listener's doing
    headers = [(spelling, CANARY) for spelling in taken.values()]
    headers += [(b"Connection", b"x-hop, X_Hop-Two"), (b"x-hop", CANARY), (b"x-hop_two", CANARY), (b"x-kept", b"kept")]
    own = gateway_headers(
        slug="slug1",
        payer="0xp",
        purchase_id="7",
        request_id="r1",
        client="192.0.2.9",
        scheme="https",
        host="gw.example",
    )
    async with target(serves(sized(b"x"))) as there, forwarder() as edge:
        request = ForwardRequest(there.at("/a?own=1"), "POST", headers, own, query=b"q=2")
        await forward(edge, request, b"hello")
        head = there.heads[0]
        assert CANARY not in head
        lines = head.split(b"\r\n")
        assert lines[0] == b"POST /a?own=1&q=2 HTTP/1.1"
        assert lines[1:] == [
            b"host: 127.0.0.1:%d" % there.port,
            b"x-kept: kept",
            *[b"%b: %b" % pair for pair in own],
            b"via: 1.1 tollkeeper",
            b"content-length: 5",
            b"",
            b"",
        ]
        assert there.bodies == [b"hello"]


async def test_a_request_that_cannot_be_sent_never_opens_a_connection() -> None:
    async with target(serves(sized(b"x"))) as there, forwarder() as edge:
        for request in (
            get(there.at(), query=b"a b"),
            get(there.at(), subpath=b"/../x"),
        ):
            assert (await refusal_of(edge, request)).code is Code.INVALID_PARAMETER
        assert there.connections == 0


@pytest.mark.parametrize(
    ("method", "body", "line"),
    [
        ("GET", b"", None),
        ("POST", b"", b"content-length: 0"),
        ("DELETE", b"", None),
        ("GET", b"x", b"content-length: 1"),
    ],
)
async def test_a_body_states_its_size(method: str, body: bytes, line: bytes | None) -> None:
    async with target(serves(sized(b"x"))) as there, forwarder() as edge:
        await forward(edge, get(there.at(), method), body)
        lines = there.heads[0].split(b"\r\n")
        assert (line in lines) if line else not any(part.startswith(b"content-length") for part in lines)
        assert there.bodies == [body]


@pytest.mark.parametrize("length", [None, 11])
async def test_a_streamed_body_arrives_whole(length: int | None) -> None:
    async with target(serves(sized(b"x"))) as there, forwarder() as edge:
        request = get(there.at(), "POST", content_length=length)
        response = await forward(edge, request, parts_of(b"hello", b"", b" ", b"world", pause_seconds=0.01))
        assert (response.status, there.bodies) == (200, [b"hello world"])
        assert (b"transfer-encoding: chunked" in there.heads[0]) is (length is None)
        assert edge.pool.idle_count == 1


async def test_a_large_body_arrives_whole() -> None:
    body = bytes(range(256)) * 40_000
    async with target(serves(sized(b"x"))) as there, forwarder() as edge:
        await forward(edge, get(there.at(), "PUT"), body)
        await forward(
            edge, get(there.at(), "PUT"), parts_of(*[body[at : at + 100_000] for at in range(0, len(body), 100_000)])
        )
        assert there.bodies == [body, body]
        assert there.connections == 1


@pytest.mark.parametrize("parts", [(b"hello",), (b"hello", b"world!"), ()])
async def test_a_body_that_is_not_as_long_as_it_said_is_never_a_whole_request(parts: tuple[bytes, ...]) -> None:
    async with target(answers(sized(b"x"))) as there, forwarder() as edge:
        refusal = await refusal_of(edge, get(there.at(), "POST", content_length=10), parts_of(*parts))
        assert refusal.code is Code.INVALID_PARAMETER
        await asyncio.wait_for(there.lost.wait(), 10)
        assert there.bodies == []


async def test_what_the_caller_s_body_raises_comes_through_and_ends_the_exchange() -> None:
    class CallerLeftError(Exception):
        pass

    async def breaking() -> AsyncIterator[bytes]:
        yield b"half"
        raise CallerLeftError

    async with target(answers(sized(b"x"))) as there, forwarder() as edge:
        with pytest.raises(CallerLeftError):
            await forward(edge, get(there.at(), "POST"), breaking())
        await asyncio.wait_for(there.lost.wait(), 10)
        assert (there.bodies, edge.pool.open_count) == ([], 0)


async def test_a_target_that_reads_slowly_slows_the_caller_down() -> None:
    taken = 0

    async def source() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield bytes(65_536)

    async def stalls(connection: Connection) -> None:
        await connection.head()
        await asyncio.sleep(60)

    async with target(stalls) as there, forwarder() as edge:
        refusal = await refusal_of(edge, get(there.at(), "POST"), source(), request_seconds=0.4)
        assert refusal.code is Code.UPSTREAM_TIMEOUT
        assert taken * 65_536 < 16 * 1024 * 1024  # what kernel buffers take, not the 64 MiB that there are


@pytest.mark.parametrize("scheme", ["plain", "TLS"])
async def test_an_early_answer_is_read_also_where_its_target_resets_over_what_it_has_not_read(
    tmp_path: Path, scheme: str
) -> None:
    """The next write finds the reset before the loop has read the answer."""
    served, trusting = certificate(tmp_path, "localhost")
    may_answer, answered = threading.Event(), threading.Event()

    def answer_and_close(listening: socket.socket) -> None:
        line, _ = listening.accept()
        line = served.wrap_socket(line, server_side=True) if scheme == "TLS" else line
        with line:
            while b"\r\n\r\n" not in line.recv(64):
                pass
            may_answer.wait(10)
            line.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nlarge")
        answered.set()

    async def upload() -> AsyncIterator[bytes]:
        yield bytes(50_000)
        await asyncio.sleep(0.05)
        may_answer.set()
        answered.wait(10)  # in the loop's own thread: it reads nothing meanwhile
        yield bytes(50_000)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"{'https' if scheme == 'TLS' else 'http'}://localhost:{listening.getsockname()[1]}/"
        thread = threading.Thread(target=answer_and_close, args=(listening,))
        thread.start()
        async with forwarder(tls=trusting) as edge:
            response = await forward(edge, get(check_target_url(url, allow_private=True), "POST"), upload())
        await asyncio.to_thread(thread.join)
    assert (response.status, response.body) == (413, b"large")


# What the caller gets


async def test_the_answer_is_filtered_and_sized() -> None:
    raw = sized(
        b"<p>", b"Content-Type: text/html", b"Set-Cookie: a=b", b"Connection: X-Inner", b"X-Inner: i", b"X-A: 1"
    )
    async with target(answers(raw)) as there, forwarder() as edge:
        response = await forward(edge, get(there.at()), b"")
        assert response.headers == [
            (b"content-type", b"text/html"),
            (b"x-a", b"1"),
            (b"cache-control", b"private, no-store"),
            (b"vary", b"X-Payment, Authorization"),
            (b"x-content-type-options", b"nosniff"),
            (b"content-security-policy", b"sandbox"),
            (b"content-length", b"3"),
        ]


async def test_too_large_an_answer_is_logged_with_size_and_limit() -> None:
    async with target(answers(OK + b"Content-Length: 11\r\n\r\n")) as there, forwarder() as edge:
        with structlog.testing.capture_logs() as logs:
            await refusal_of(edge, get(there.at()), response_size_bytes=10)
        assert [entry for entry in logs if entry["log_level"] == "warning"] == [
            {
                "event": "upstream_too_large",
                "log_level": "warning",
                "host": "127.0.0.1",
                "size_bytes": 11,
                "limit_bytes": 10,
            }
        ]


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 5000, 300_000, 2_000_000])
async def test_an_answer_beyond_the_memory_limit_goes_to_disk_and_comes_back_whole(size: int, tmp_path: Path) -> None:
    body = (bytes(range(251)) * (size // 251 + 1))[:size]
    edge = Forwarder(Resolver(allow_private=True), spool_folder=tmp_path)
    async with target(serves(sized(body))) as there:
        for _ in range(2):
            response = await forward(edge, get(there.at()), b"", limits=ForwardLimits(memory_size_bytes=1000))
            if size <= 1000:
                assert response.body == body
            else:
                assert isinstance(response.body, SpooledBody)
                assert b"".join([part async for part in response.body]) == body
            assert (b"content-length", b"%d" % size) in response.headers
        assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []
        assert there.connections == 1
        edge.close()


async def test_no_room_on_disk_is_a_clean_refusal(tmp_path: Path) -> None:
    edge = Forwarder(Resolver(allow_private=True), spool_folder=tmp_path / "missing")
    async with target(answers(sized(bytes(3_000_000)))) as there:
        refusal = await refusal_of(edge, get(there.at()))
        assert (refusal.code, refusal.status) == (Code.UNAVAILABLE, 503)
        assert edge.pool.open_count == 0
        edge.close()


@pytest.mark.parametrize("short_bytes", [1, 1000, 4096, 100_000])
async def test_a_disk_that_is_full_in_the_middle_of_an_answer_is_a_clean_refusal(
    short_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever in one of its writes that happens."""
    written_bytes = [0]

    def allow_a_part_of_it(_room: SpoolRoom, size_bytes: int) -> None:
        is_first, written_bytes[0] = not written_bytes[0], written_bytes[0] + size_bytes
        if not is_first:
            full.enter_context(no_file_larger_than(written_bytes[0] - short_bytes))

    monkeypatch.setattr(SpoolRoom, "require", allow_a_part_of_it)
    async with target(answers(sized(bytes(6_000_000)))) as there, forwarder() as edge:
        with contextlib.ExitStack() as full:
            refusal = await asyncio.wait_for(refusal_of(edge, get(there.at())), 10)
        assert (refusal.code, refusal.status) == (Code.UNAVAILABLE, 503)
        assert edge.room.memory.held == edge.room.disk.held == edge.places.held == edge.pool.open_count == 0


async def test_whatever_fails_when_a_call_is_given_up_its_owner_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    close = Spool.close

    def fail_once(_spool: Spool) -> None:
        monkeypatch.setattr(Spool, "close", close)
        raise ZeroDivisionError

    monkeypatch.setattr(Spool, "close", fail_once)
    head = OK + b"Content-Length: 500000\r\n\r\n"
    async with target(answers(head, bytes(200_000), wait=False)) as there, forwarder() as edge:
        refusal = await asyncio.wait_for(refusal_of(edge, get(there.at())), 10)
        assert (refusal.code, edge.room.memory.held) == (Code.UPSTREAM_INVALID, 0)
        assert Spool.close is close


async def test_a_disk_that_does_not_take_an_answer_in_time_is_a_refusal_and_gets_its_space_back(tmp_path: Path) -> None:
    edge = Forwarder(Resolver(allow_private=True), spool_folder=tmp_path)
    is_quick = threading.Event()
    for _ in range(THREADS):
        edge.room.threads.submit(is_quick.wait, 10)
    # Its last byte is the one that is too much for memory: all is there, and waits for the disk alone.
    async with target(serves(sized(bytes(1001)))) as there:
        refusal = await refusal_of(edge, get(there.at()), response_seconds=2, memory_size_bytes=1000)
        assert (refusal.code, refusal.status) == (Code.UNAVAILABLE, 503)
        assert "in time" in refusal.message
        is_quick.set()
        response = await forward(edge, get(there.at()), b"", limits=ForwardLimits(memory_size_bytes=1000))
        assert isinstance(response.body, SpooledBody)
        response.close()
        # The first one's write was given up, and may be done by another thread later than the second one's.
        async with asyncio.timeout(20):
            while edge.room.disk.held:  # noqa: ASYNC110 - a room is asked
                await asyncio.sleep(0.01)
        assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []
        edge.close()


async def test_memory_stays_bounded_while_many_large_answers_wait() -> None:
    async with target(serves(sized(bytes(10_000_000)))) as there, forwarder() as edge:
        (await forward(edge, get(there.at()), b"")).close()
        gc.collect()
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        responses = await asyncio.gather(*[forward(edge, get(there.at()), b"") for _ in range(20)])
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
        for response in responses:
            response.close()
        assert grown_kib < 128 * 1024  # of 200 MB; the target's own send buffers are in here too


# When it ends


async def test_the_time_for_the_answer_starts_with_the_last_byte_of_the_request() -> None:
    async with target(answers(sized(b"x"))) as there, forwarder() as edge:
        slow = parts_of(b"a", b"b", b"c", pause_seconds=0.7)  # in all longer than the answer may take
        limits = ForwardLimits(request_seconds=30, response_seconds=2)
        assert (await forward(edge, get(there.at(), "POST"), slow, limits=limits)).status == 200


async def test_no_target_is_called_slow_because_its_caller_was() -> None:
    async with target(answers(sized(b"x"))) as there, forwarder() as edge:
        slow = parts_of(b"a", b"b", b"c", pause_seconds=0.7)
        limits = ForwardLimits(request_seconds=1, response_seconds=20)
        assert (await forward(edge, get(there.at(), "POST"), slow, limits=limits)).status == 200


async def test_a_target_has_so_long_in_all_to_take_what_its_caller_sends() -> None:
    """However often it takes a little, and however slow its caller is besides."""
    taken_bytes = 0

    async def source() -> AsyncIterator[bytes]:
        nonlocal taken_bytes
        await asyncio.sleep(1.5)  # longer than the target may make wait
        while True:
            taken_bytes += 65_536
            yield bytes(65_536)

    async def dawdles(connection: Connection) -> None:
        await connection.head()
        while await connection.reader.read(2**20):  # noqa: ASYNC110 - it takes a little at a time
            await asyncio.sleep(0.02)

    async with target(dawdles) as there, forwarder() as edge:
        refusal = await refusal_of(edge, get(there.at(), "POST"), source(), request_seconds=1)
        assert (refusal.code, "take the request" in refusal.message) == (Code.UPSTREAM_TIMEOUT, True)
        assert taken_bytes > 4 * 2**20


async def test_a_second_attempt_has_what_is_left_of_the_time_for_the_first() -> None:
    async def behave(connection: Connection) -> None:
        await connection.request()
        if there.connections == 1:
            await connection.send(sized(b"x"))
            await connection.head()
            await asyncio.sleep(2)
            connection.reset()
        else:
            await connection.wait_closed()

    async with target(behave) as there, forwarder() as edge:
        await forward(edge, get(there.at()), b"")
        started = asyncio.get_running_loop().time()
        assert (await refusal_of(edge, get(there.at()), response_seconds=3)).code is Code.UPSTREAM_TIMEOUT
        assert there.connections == 2
        assert asyncio.get_running_loop().time() - started < 4.5


async def test_an_answer_that_comes_in_time_in_part_only_is_late() -> None:
    async def behave(connection: Connection) -> None:
        await connection.request()
        for part in (OK + b"Content-Length: 3\r\n\r\n", b"a", b"b", b"c"):
            await connection.send(part)
            await asyncio.sleep(0.1)

    async with target(behave) as there, forwarder() as edge:
        started = asyncio.get_running_loop().time()
        assert (await refusal_of(edge, get(there.at()), response_seconds=0.15)).code is Code.UPSTREAM_TIMEOUT
        assert 0.1 < asyncio.get_running_loop().time() - started < 30


async def test_a_caller_who_leaves_ends_the_exchange_with_the_target() -> None:
    arrived = asyncio.Event()

    async def behave(connection: Connection) -> None:
        await connection.request()
        arrived.set()
        await connection.wait_closed()

    async with target(behave) as there, forwarder() as edge:
        call = asyncio.ensure_future(forward(edge, get(there.at()), b""))
        await asyncio.wait_for(arrived.wait(), 10)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(there.lost.wait(), 10)
        assert edge.pool.open_count == 0


async def test_an_answer_that_comes_before_the_body_is_sent_is_the_answer() -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 1000
                await asyncio.sleep(0.01)
        finally:
            closed.set()

    async def refuses(connection: Connection) -> None:
        await connection.head()
        await connection.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await connection.wait_closed()

    async with target(refuses) as there, forwarder() as edge:
        response = await forward(edge, get(there.at(), "POST"), endless())
        assert (response.status, response.body) == (413, b"big")
        await asyncio.wait_for(there.lost.wait(), 10)
        await asyncio.wait_for(closed.wait(), 10)
        assert edge.pool.open_count == 0


async def test_an_answer_before_a_large_body_is_read_is_the_answer() -> None:
    async def refuses(connection: Connection) -> None:
        await connection.head()
        await connection.send(b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno")
        await asyncio.sleep(1)

    async with target(refuses) as there, forwarder() as edge:
        response = await forward(edge, get(there.at(), "POST"), bytes(30_000_000))
        assert (response.status, response.body) == (403, b"no")
        assert edge.pool.idle_count == 0


# Connections


async def test_a_connection_is_used_again() -> None:
    async def behave(connection: Connection) -> None:
        while True:
            head, _ = await connection.request()
            await connection.send(OK + b"Content-Length: 1\r\n\r\n" + (b"" if head.startswith(b"HEAD") else b"x"))

    async with target(behave) as there, forwarder() as edge:
        for method in ("GET", "HEAD", "POST", "HEAD", "GET"):
            response = await forward(edge, get(there.at(f"/{method}"), method), b"")
            assert response.body == (b"" if method == "HEAD" else b"x")
        assert (there.connections, len(there.heads), edge.pool.open_count) == (1, 5, 1)


async def test_connections_are_used_by_one_exchange_at_a_time() -> None:
    async def slow(connection: Connection) -> None:
        while True:
            head, _ = await connection.request()
            await asyncio.sleep(0.05)
            await connection.send(sized(head.split(b" ")[1]))

    async with target(slow) as there, forwarder() as edge:
        for _ in range(3):
            responses = await asyncio.gather(*[forward(edge, get(there.at(f"/{n}")), b"") for n in range(20)])
            assert [response.body for response in responses] == [b"/%d" % n for n in range(20)]
        assert there.connections == 20
        assert edge.pool.idle_count == 20


@pytest.mark.parametrize(
    "response",
    [
        sized(b"x", b"Connection: close"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
        sized(b"x", b"Keep-Alive: timeout=1"),
        sized(b"x", b"Keep-Alive: max=5, timeout=0"),
    ],
)
async def test_a_connection_that_the_target_gives_up_is_not_kept(response: bytes) -> None:
    async with target(serves(response)) as there, forwarder() as edge:
        for _ in range(2):
            await forward(edge, get(there.at()), b"")
            assert edge.pool.idle_count == 0
        assert there.connections == 2


async def closes_kept(there: Target, first: asyncio.Event, connection: Connection) -> None:
    """Answer once; on the next request of that connection close without a word."""
    await connection.request()
    await connection.send(sized(b"x"))
    if there.connections == 1:
        await connection.head()
        first.set()
        connection.reset()
    else:
        await connection.wait_closed()


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
async def test_an_idempotent_request_on_a_stale_connection_is_sent_once_more(method: str) -> None:
    first = asyncio.Event()

    async def behave(connection: Connection) -> None:
        await closes_kept(there, first, connection)

    async with target(behave) as there, forwarder() as edge:
        await forward(edge, get(there.at()), b"")
        response = await forward(edge, get(there.at(), method), b"body")
        assert response.status == 200
        assert (there.connections, len(there.heads)) == (2, 3)


@pytest.mark.parametrize(("method", "streamed"), [("POST", False), ("PATCH", False), ("PUT", True)])
async def test_any_other_request_on_a_stale_connection_is_never_sent_twice(method: str, streamed: bool) -> None:  # noqa: FBT001 - a parameter of the table
    first = asyncio.Event()

    async def behave(connection: Connection) -> None:
        await closes_kept(there, first, connection)

    async with target(behave) as there, forwarder() as edge:
        await forward(edge, get(there.at()), b"")
        refusal = await refusal_of(
            edge, get(there.at(), method), parts_of(b"a", b"b", pause_seconds=0.05) if streamed else b"ab"
        )
        assert refusal.code is Code.UPSTREAM_UNREACHABLE
        assert (there.connections, len(there.heads)) == (1, 2)


async def test_a_request_whose_answer_had_begun_is_never_sent_twice() -> None:
    async def behave(connection: Connection) -> None:
        await connection.request()
        await connection.send(sized(b"x"))
        await connection.head()
        await connection.send(b"H")
        connection.writer.close()

    async with target(behave) as there, forwarder() as edge:
        await forward(edge, get(there.at()), b"")
        assert (await refusal_of(edge, get(there.at()))).code is Code.UPSTREAM_INVALID
        assert (there.connections, len(there.heads)) == (1, 2)


async def test_a_request_on_a_new_connection_is_never_sent_twice() -> None:
    async with target(answers(wait=False)) as there, forwarder() as edge:
        assert (await refusal_of(edge, get(there.at()))).code is Code.UPSTREAM_UNREACHABLE
        assert there.connections == 1


async def test_a_kept_connection_that_the_target_closed_meanwhile_is_not_used() -> None:
    async def behave(connection: Connection) -> None:
        await connection.request()
        await connection.send(sized(b"x"))

    async with target(behave) as there, forwarder() as edge:
        for count in (1, 2, 3):
            await forward(edge, get(there.at(), "POST"), b"")
            await until(lambda: edge.pool.open_count == 0)
            assert there.connections == count


async def test_a_refused_port_is_unreachable() -> None:
    async with target(serves(b"")) as there:
        gone = there.at()
    async with forwarder() as edge:
        assert (await refusal_of(edge, get(gone))).code is Code.UPSTREAM_UNREACHABLE


@contextlib.contextmanager
def silent(host: str, port: int = 0) -> Iterator[int]:
    """A port there that answers nobody who connects."""
    with socket.create_server((host, port), backlog=0) as full, contextlib.ExitStack() as held:
        for _ in range(3):  # more than its queue holds: who comes next is not answered
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        yield full.getsockname()[1]


async def test_a_host_that_never_accepts_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tollkeeper.edge.target.pool.CONNECT_TIMEOUT_SECONDS", 0.2)
    with silent("127.0.0.1") as port:
        async with forwarder() as edge:
            request = get(TargetUrl("http", "127.0.0.1", port, "/", ""))
            assert (await refusal_of(edge, request)).code is Code.UPSTREAM_UNREACHABLE


async def test_connecting_counts_as_sending() -> None:
    async def names(_host: str, _port: int) -> list[str]:
        await asyncio.sleep(1)
        return []

    async with forwarder(Resolver(allow_private=True, lookup=names)) as edge:
        request = get(TargetUrl("http", "slow.example", 9, "/", ""))
        assert (await refusal_of(edge, request, response_seconds=0.05)).code is Code.UPSTREAM_TIMEOUT
        late = await refusal_of(edge, get(request.target, "POST"), parts_of(b"a"), request_seconds=0.05)
        assert late.code is Code.UPSTREAM_TIMEOUT


async def test_an_address_that_does_not_answer_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tollkeeper.edge.target.pool.CONNECT_TIMEOUT_SECONDS", 4.0)
    monkeypatch.setattr("tollkeeper.edge.target.pool.SILENT_SECONDS", 2.0)

    async def names(_host: str, _port: int) -> list[str]:
        return ["127.0.0.3", "127.0.0.1"]

    async def took(edge: Forwarder, port: int) -> float:
        """The seconds of a call on a new connection."""
        edge.pool.renew()
        begun = time.monotonic()
        assert (await forward(edge, get(TargetUrl("http", "two.example", port, "/", "")), b"")).body == b"x"
        return time.monotonic() - begun

    async with target(serves(sized(b"x"))) as there, forwarder(Resolver(allow_private=True, lookup=names)) as edge:
        with silent("127.0.0.3", there.port):
            assert await took(edge, there.port) >= 2
            assert await took(edge, there.port) < 1.5
            await asyncio.sleep(2)
            assert await took(edge, there.port) >= 2  # it may be there again
    assert there.connections == 3


async def test_the_next_address_is_tried_where_one_does_not_answer() -> None:
    async def names(_host: str, _port: int) -> list[str]:
        return ["127.0.0.3", "127.0.0.1"]

    async with target(serves(sized(b"x"))) as there, forwarder(Resolver(allow_private=True, lookup=names)) as edge:
        request = get(TargetUrl("http", "two.example", there.port, "/", ""))
        assert (await forward(edge, request, b"")).body == b"x"
        assert (await forward(edge, request, b"")).body == b"x"
        assert there.connections == 1


# TLS


async def speaks_first(connection: Connection) -> None:
    await connection.send(b"SSH-2.0-OpenSSH_9.2\r\n")
    await connection.wait_closed()


async def here(_host: str, _port: int) -> list[str]:
    return ["127.0.0.1"]


async def test_a_tls_target_is_verified_by_its_name(tmp_path: Path) -> None:
    server, client = certificate(tmp_path, "good.example")
    resolver = Resolver(allow_private=True, lookup=here)
    seen: list[ssl.SSLObject] = []

    async def behave(connection: Connection) -> None:
        seen.append(connection.writer.get_extra_info("ssl_object"))
        await serves(sized(b"x" * 100_000))(connection)

    async with target(behave, tls=server) as there, forwarder(resolver, client) as edge:
        request = get(TargetUrl("https", "good.example", there.port, "/", ""))
        for _ in range(3):
            assert (await forward(edge, request, b"")).body == b"x" * 100_000
        assert there.connections == 1
        assert seen[0].selected_alpn_protocol() == "http/1.1"
        assert b"host: good.example:%d" % there.port in there.heads[0]


async def test_a_kept_tls_connection_is_for_the_name_that_it_was_verified_for(tmp_path: Path) -> None:
    server, client = certificate(tmp_path, "good.example")
    resolver = Resolver(allow_private=True, lookup=here)
    async with target(serves(sized(b"x")), tls=server) as there, forwarder(resolver, client) as edge:
        good, other = (get(TargetUrl("https", name, there.port, "/", "")) for name in ("good.example", "other.example"))
        assert (await forward(edge, good, b"")).body == b"x"
        assert edge.pool.idle_count == 1
        assert (await refusal_of(edge, other)).code is Code.UPSTREAM_UNREACHABLE
        plain = await refusal_of(edge, get(TargetUrl("http", "good.example", there.port, "/", "")))
        assert plain.status == 502
        assert (await forward(edge, good, b"")).body == b"x"
        assert len(there.heads) == 2
        assert all(b"host: good.example:%d" % there.port in head for head in there.heads)


async def test_trust_that_cannot_be_read_when_it_is_first_needed_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = certificate(tmp_path, "good.example")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "good.example.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))

    async def here(_host: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    async with (
        target(serves(sized(b"one")), tls=server) as there,
        forwarder(Resolver(allow_private=True, lookup=here)) as edge,
    ):
        asked = ForwardRequest(TargetUrl("https", "good.example", there.port, "/", ""), "GET", [])
        with nothing_more_can_be_opened(os.getpid()), pytest.raises(NothingSentError):
            await forward(edge, asked, b"")
        assert (await forward(edge, asked, b"")).body == b"one"


@pytest.mark.parametrize("case", ["another name", "an unknown issuer", "no TLS"])
async def test_a_target_that_is_not_who_it_should_be_hears_nothing(case: str, tmp_path: Path) -> None:
    server, client = certificate(tmp_path, "good.example")
    name = "other.example" if case == "another name" else "good.example"
    context = None if case == "an unknown issuer" else client
    async with (
        target(
            serves(sized(b"x")) if case != "no TLS" else speaks_first, tls=None if case == "no TLS" else server
        ) as there,
        forwarder(Resolver(allow_private=True, lookup=here), context) as edge,
    ):
        refusal = await refusal_of(edge, get(TargetUrl("https", name, there.port, "/", "")), request_seconds=20)
        assert refusal.code is Code.UPSTREAM_UNREACHABLE
        assert there.heads == []
        assert edge.pool.open_count == 0


async def test_a_tls_answer_that_ends_with_the_connection_comes_through(tmp_path: Path) -> None:
    server, client = certificate(tmp_path, "good.example")
    async with (
        target(answers(OK + b"\r\nhello", wait=False), tls=server) as there,
        forwarder(Resolver(allow_private=True, lookup=here), client) as edge,
    ):
        assert (await forward(edge, get(TargetUrl("https", "good.example", there.port, "/", "")), b"")).body == b"hello"


# Streamed answers


async def test_a_streamed_answer_comes_as_it_is_sent() -> None:
    go = asyncio.Event()

    async def behave(connection: Connection) -> None:
        await connection.request()
        await connection.send(OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await go.wait()
        await connection.send(b"3\r\ntwo\r\n0\r\n\r\n")
        await connection.wait_closed()

    async with target(behave) as there, forwarder() as edge:
        response = await forward_streamed(edge, get(there.at()), b"")
        assert not any(name == b"content-length" for name, _ in response.headers)
        parts = []
        assert not isinstance(response.body, bytes)
        async for part in response.body:
            parts.append(part)
            go.set()
        assert parts == [b"one", b"two"]
        assert edge.pool.idle_count == 1


async def test_a_streamed_answer_that_grows_too_large_breaks_off() -> None:
    async with target(answers(OK + b"\r\n" + b"x" * 11)) as there, forwarder() as edge:
        response = await forward_streamed(edge, get(there.at()), b"", limits=ForwardLimits(response_size_bytes=10))
        assert not isinstance(response.body, bytes)
        with pytest.raises(ApiError) as refusal:
            [part async for part in response.body]
        assert refusal.value.code is Code.UPSTREAM_TOO_LARGE
        await asyncio.sleep(0)
        assert edge.pool.open_count == 0


async def test_a_streamed_answer_that_announces_too_much_is_refused_before_its_head_is_passed_on() -> None:
    async with target(answers(OK + b"Content-Length: 11\r\n\r\n")) as there, forwarder() as edge:
        with pytest.raises(ApiError) as refusal:
            await forward_streamed(edge, get(there.at()), b"", limits=ForwardLimits(response_size_bytes=10))
        assert refusal.value.code is Code.UPSTREAM_TOO_LARGE


async def test_a_caller_who_reads_a_stream_slowly_slows_the_target_down() -> None:
    sent = 0

    async def behave(connection: Connection) -> None:
        nonlocal sent
        await connection.request()
        await connection.send(sized(b"")[:0] + OK + b"Content-Length: 10000000\r\n\r\n")
        for _ in range(100):
            await connection.send(bytes(100_000))
            sent += 100_000
        await connection.wait_closed()

    async with target(behave) as there, forwarder() as edge:
        response = await forward_streamed(edge, get(there.at()), b"")
        await asyncio.sleep(0.3)
        held = sent
        assert held < 9_000_000
        assert not isinstance(response.body, bytes)
        assert sum([len(part) async for part in response.body]) == 10_000_000


async def test_a_caller_who_leaves_a_stream_ends_the_exchange() -> None:
    async with target(answers(OK + b"Content-Length: 10\r\n\r\nhello")) as there, forwarder() as edge:
        response = await forward_streamed(edge, get(there.at()), b"")
        response.close()
        await asyncio.wait_for(there.lost.wait(), 10)
        assert edge.pool.open_count == 0


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_streamed_call_on_a_stale_connection_follows_the_same_rule(method: str) -> None:
    first = asyncio.Event()

    async def behave(connection: Connection) -> None:
        await closes_kept(there, first, connection)

    async with target(behave) as there, forwarder() as edge:
        await forward(edge, get(there.at()), b"")
        if method == "GET":
            response = await forward_streamed(edge, get(there.at(), method), b"")
            assert not isinstance(response.body, bytes)
            assert [part async for part in response.body] == [b"x"]
        else:
            with pytest.raises(ApiError) as refusal:
                await forward_streamed(edge, get(there.at(), method), b"")
            assert refusal.value.code is Code.UPSTREAM_UNREACHABLE
        assert there.connections == (2 if method == "GET" else 1)


async def test_a_streamed_answer_that_is_late_breaks_off() -> None:
    async with target(answers(OK + b"Content-Length: 10\r\n\r\nhello")) as there, forwarder() as edge:
        response = await forward_streamed(edge, get(there.at()), b"", limits=ForwardLimits(response_seconds=2))
        parts = []
        assert not isinstance(response.body, bytes)
        stream = aiter(response.body)
        parts.append(await anext(stream))
        with pytest.raises(ApiError) as refusal:
            await anext(stream)
        assert (parts, refusal.value.code) == ([b"hello"], Code.UPSTREAM_TIMEOUT)


async def test_a_caller_who_leaves_before_the_head_of_a_stream_ends_the_exchange() -> None:
    async with target(answers()) as there, forwarder() as edge:
        call = asyncio.ensure_future(forward_streamed(edge, get(there.at()), b""))
        await until(lambda: there.heads)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(there.lost.wait(), 10)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_target_that_closes_each_new_connection_is_unreachable(
    *, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollkeeper.edge.target.connection.TargetConnection.is_closing", lambda _: True)
    async with target(answers()) as there, forwarder() as edge:
        call = forward_streamed if streamed else forward
        with pytest.raises(ApiError) as refusal:
            await call(edge, get(there.at()), b"")
        assert refusal.value.code is Code.UPSTREAM_UNREACHABLE
        assert there.heads == []


async def test_an_answer_to_a_body_that_never_starts_is_the_answer() -> None:
    never = asyncio.Event()

    async def waits() -> AsyncIterator[bytes]:
        await never.wait()
        yield b""

    async def refuses(connection: Connection) -> None:
        await connection.head()
        await connection.send(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n")
        await connection.wait_closed()

    async with target(refuses) as there, forwarder() as edge:
        assert (await forward(edge, get(there.at(), "POST"), waits())).status == 401
        assert edge.pool.idle_count == 0


async def test_a_response_that_is_given_up_is_closed() -> None:
    async with target(serves(sized(bytes(2_000_000)))) as there, forwarder() as edge:
        response = await forward(edge, get(there.at()), b"")
        response.close()
        assert isinstance(response.body, SpooledBody)
        with pytest.raises(ValueError, match="closed"):
            [part async for part in response.body]
        (await forward(edge, get(there.at()), b"", limits=ForwardLimits(memory_size_bytes=3_000_000))).close()
