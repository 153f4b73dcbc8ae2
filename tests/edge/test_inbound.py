"""What the strict listener accepts, in which order it answers, and whom it gives up (A-40, A-58, performance 5)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import structlog
from uvicorn.config import Config
from uvicorn.server import Server

from tests.edge.callers import Answer, Listening, caller, everything, first_answer, listener, render, say
from tests.edge.targets import certificate
from tests.edge.test_calls import until
from tollkeeper.core.http.timeouts import Patience
from tollkeeper.edge.server.protocol import PIPELINED_MAX
from tollkeeper.edge.server.protocol_class import strict_protocol

HOST = b"Host: gw.example\r\n"
LAST = b"GET /last HTTP/1.1\r\nHost: gw.example\r\nConnection: close\r\n\r\n"
BAD = b"GET /bad HTTP/1.1\r\n\r\n"
IMPATIENT = Patience(
    head_seconds=0.2,
    body_seconds=0.3,
    read_seconds=0.4,
    linger_seconds=0.2,
    linger_total_seconds=0.4,
    sweep_seconds=0.05,
)


def get(path: bytes, *lines: bytes, method: bytes = b"GET") -> bytes:
    return method + b" " + path + b" HTTP/1.1\r\n" + HOST + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def was_refused(logs: Sequence[Mapping[str, object]]) -> bool:
    return any(entry["event"] == "request_refused" for entry in logs)


def answers_in(raw: bytes) -> list[Answer]:
    found = []
    while raw:
        answer = first_answer(raw)
        found.append(answer)
        raw = answer.rest
    return found


@pytest.mark.parametrize(
    ("raw", "path", "body"),
    [
        (get(b"/a"), b"/a", b""),
        (b"\r\n\r\n" + get(b"/a"), b"/a", b""),
        (get(b"//a"), b"//a", b""),
        (get(b"/a/../b;c%2f%41"), b"/a/../b;c%2f%41", b""),
        (get(b"/a?b=c&d=[e]{f}|'"), b"/a", b""),
        (get(b"/a", method=b"DELETE"), b"/a", b""),
        (get(b"/a", method=b"OPTIONS"), b"/a", b""),
        (get(b"/a", method=b"TRACE"), b"/a", b""),
        (get(b"/a", b"Content-Length: 0", method=b"POST"), b"/a", b""),
        (get(b"/a", b"Content-Length: 5", method=b"POST") + b"hello", b"/a", b"hello"),
        (get(b"/a", b"Content-Length:5", method=b"PUT") + b"hello", b"/a", b"hello"),
        (get(b"/a", b"Content-Length: \t5 ", method=b"PATCH") + b"hello", b"/a", b"hello"),
        (get(b"/a", b"Content-Length: 005", method=b"POST") + b"hello", b"/a", b"hello"),
        (get(b"/a", b"Content-Length: 5") + b"hello", b"/a", b"hello"),
        (get(b"/a", b"Transfer-Encoding: chunked", method=b"POST") + b"5\r\nhello\r\n0\r\n\r\n", b"/a", b"hello"),
        (
            get(b"/a", b"Transfer-Encoding: CHUNKED", method=b"POST") + b'5;a=b;c="d"\r\nhello\r\n00\r\n\r\n',
            b"/a",
            b"hello",
        ),
        (get(b"/a", b"Transfer-Encoding: chunked") + b"A\r\n0123456789\r\n0\r\nT: v\r\n\r\n", b"/a", b"0123456789"),
        (get(b"/a", b"A:", b"B: ", b"C:d", b"E:\tf", "G: é".encode("latin-1")), b"/a", b""),
        (get(b"/a", b"Accept: a", b"Accept: b", b"Cookie: a=1", b"Cookie: b=2"), b"/a", b""),
        (get(b"/a", b"x_custom: 1", b"X_Custom: 2"), b"/a", b""),
        (get(b"/a", b"X-Payment: p", b"Authorization: Bearer t", b"X-Credit-Token: c"), b"/a", b""),
        (get(b"/a", b"Upgrade: h2c"), b"/a", b""),
    ],
)
async def test_a_plain_request_reaches_the_application_as_it_is(raw: bytes, path: bytes, body: bytes) -> None:
    async with listener() as listening:
        answers = answers_in(await say(listening, raw + LAST))
        assert [answer.status for answer in answers] == [200, 200]
        assert (listening.seen[0].path, listening.seen[0].body) == (path, body)
        assert listening.seen[1].path == b"/last"


@pytest.mark.parametrize("host", [b"gw.example", b"gw.example:8402", b"127.0.0.1:1", b"[::1]:8402", b"a_b", b"GW"])
async def test_a_host_in_any_plain_form_is_taken(host: bytes) -> None:
    async with listener() as listening:
        raw = b"GET /a HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n"
        assert first_answer(await say(listening, raw)).status == 200


async def test_http_1_0_is_answered_and_closed() -> None:
    async with listener() as listening:
        answer = first_answer(await say(listening, b"GET /a HTTP/1.0\r\nHost: gw.example\r\n\r\n"))
        assert (answer.status, answer.headers[b"connection"]) == (200, b"close")


async def test_a_head_that_comes_byte_by_byte_is_a_head() -> None:
    """The empty lines before it too, which RFC 9112 2.2 allows."""
    async with listener() as listening, caller(listening) as (reader, writer):
        raw = get(b"/a", b"Content-Length: 2", b"Connection: close", method=b"POST") + b"hi"
        for part in [b"\r", b"\n\r", b"\n" + raw[:1], *(bytes([byte]) for byte in raw[1:])]:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        assert first_answer(await everything(reader)).body == b"POST /a hi"


async def test_trailers_reach_nobody() -> None:
    """Headers behind the body would otherwise join those that were checked."""
    trailers = b"X-Payment: late\r\nHost: evil.example\r\nX_Payment: late\r\n"
    raw = get(b"/wait", b"Transfer-Encoding: chunked", method=b"POST") + b"2\r\nhi\r\n0\r\n" + trailers + b"\r\n"
    async with listener() as listening:
        listening.go.set()
        answers = answers_in(await say(listening, raw + LAST))
        assert [answer.status for answer in answers] == [200, 200]
        assert listening.seen[0].headers == [(b"host", b"gw.example"), (b"transfer-encoding", b"chunked")]


# Order


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    async with listener() as listening:
        raw = b"".join(get(b"/%d" % number, b"Content-Length: 1", method=b"POST") + b"x" for number in range(20))
        answers = answers_in(await say(listening, raw + LAST))
        assert [answer.body for answer in answers] == [b"POST /%d x" % n for n in range(20)] + [b"GET /last "]


@pytest.mark.parametrize(
    ("raw", "has_body"),
    [
        (b"HEAD /a HTTP/1.1\r\n\r\n", False),
        (b"\r\nHEAD /a HTTP/1.1\r\n\r\n", False),
        (b"HEAD  /a HTTP/1.1\r\nHost: a\r\n\r\n", False),
        (get(b"/a", b"X: " + b"x" * 70_000, method=b"HEAD"), False),
        (get(b"/a", b"Transfer-Encoding: chunked", method=b"HEAD") + b"z", False),
        (get(b"/a", method=b"HEAD") + b"?", True),
        (get(b"/a", method=b"HEAD") + b"HEADS /a HTTP/1.1\r\n\r\n", True),
        (b"GET /a HTTP/1.1\r\n\r\n", True),
    ],
)
async def test_a_refused_head_is_told_no_body(raw: bytes, *, has_body: bool) -> None:
    async with listener() as listening:
        said = await say(listening, raw)
        last, body = said[said.rindex(b"HTTP/1.1 4") :].split(b"\r\n\r\n")
        assert b"content-length: 0" not in last
        assert bool(body) == has_body


async def test_a_refusal_waits_for_the_answers_before_it() -> None:
    async with listener() as listening, caller(listening) as (reader, writer):
        writer.write(get(b"/wait") + get(b"/second") + BAD + LAST)
        await asyncio.sleep(0.1)
        listening.go.set()
        answers = answers_in(await asyncio.wait_for(everything(reader), 5))
        assert [answer.status for answer in answers] == [200, 200, 400]
        assert [seen.path for seen in listening.seen] == [b"/wait", b"/second"]
        assert listening.gone == 0


async def test_a_refusal_that_comes_while_an_answer_is_awaited_waits_for_it() -> None:
    async with listener() as listening, caller(listening) as (reader, writer):
        writer.write(get(b"/wait"))
        await asyncio.sleep(0.05)
        writer.write(BAD)
        await asyncio.sleep(0.05)
        writer.write(LAST)
        await asyncio.sleep(0.05)
        listening.go.set()
        assert [answer.status for answer in answers_in(await everything(reader))] == [200, 400]
        assert len(listening.seen) == 1


async def test_more_requests_than_may_wait_are_refused_after_the_answers_to_the_others() -> None:
    async with listener() as listening, caller(listening) as (reader, writer):
        with structlog.testing.capture_logs() as logs:
            writer.write(get(b"/wait") + get(b"/a") * (PIPELINED_MAX + 1000))
            await until(lambda: was_refused(logs))
        listening.go.set()
        answers = answers_in(await everything(reader))
        assert [answer.status for answer in answers] == [200] * (PIPELINED_MAX + 1) + [429]
        assert answers[-1].error["code"] == "RATE_LIMITED"


async def test_what_surrounds_a_headers_value_is_no_part_of_it() -> None:
    async with listener() as listening, caller(listening) as (reader, writer):
        writer.write(b"GET /a HTTP/1.1\r\nHost: x \r\nX-One: \t a b \t\r\nX-None: \t \r\nConnection: close\r\n\r\n")
        assert [answer.status for answer in answers_in(await everything(reader))] == [200]
        (seen,) = listening.seen
        assert [value for name, value in seen.headers if name in {b"host", b"x-one", b"x-none"}] == [b"x", b"a b", b""]


async def test_a_head_request_too_many_is_refused_without_a_body() -> None:
    async with listener() as listening, caller(listening) as (reader, writer):
        with structlog.testing.capture_logs() as logs:
            writer.write(get(b"/wait") + get(b"/a") * PIPELINED_MAX + get(b"/a", method=b"HEAD"))
            await until(lambda: was_refused(logs))
        listening.go.set()
        _, refused = (await everything(reader)).split(b"HTTP/1.1 429 ")
        assert refused.endswith(b"\r\n\r\n")


async def test_a_body_that_breaks_takes_its_request_back() -> None:
    raw = get(b"/a", b"Transfer-Encoding: chunked", method=b"POST") + b"2\r\nhi\r\n"
    async with listener() as listening, caller(listening) as (reader, writer):
        writer.write(raw)
        await until(lambda: listening.seen)
        writer.write(b"zz\r\n" + LAST)
        answers = answers_in(await everything(reader))
        assert [answer.status for answer in answers] == [400]
        assert ([seen.path for seen in listening.seen], listening.gone) == ([b"/a"], 1)


async def test_a_body_that_breaks_behind_an_answer_that_is_awaited_is_refused_after_it() -> None:
    raw = get(b"/wait") + get(b"/broken", b"Transfer-Encoding: chunked", method=b"POST") + b"2\r\nhi\r\nzz\r\n"
    async with listener() as listening, caller(listening) as (reader, writer):
        writer.write(raw + LAST)
        await asyncio.sleep(0.1)
        listening.go.set()
        answers = answers_in(await everything(reader))
        assert [answer.status for answer in answers] == [200, 400]
        assert [seen.path for seen in listening.seen] == [b"/wait"]


async def test_a_body_that_breaks_when_its_answer_has_begun_ends_the_connection() -> None:
    raw = get(b"/begun", b"Transfer-Encoding: chunked", method=b"POST") + b"2\r\nhi\r\n"
    async with listener() as listening, caller(listening) as (reader, writer):
        writer.write(raw)
        received = await reader.readuntil(b"4\r\nhalf\r\n")
        writer.write(b"zz\r\n" + LAST)
        assert await everything(reader) == b""
        assert b"400" not in received
        assert listening.gone == 1


async def test_an_answer_before_the_body_does_not_confuse_what_follows() -> None:
    async with listener() as listening, caller(listening) as (reader, writer):
        writer.write(get(b"/early", b"Content-Length: 100000", method=b"POST"))
        assert (await reader.readuntil(b"early")).startswith(b"HTTP/1.1 200")
        writer.write(get(b"/smuggled") * 2 + bytes(100_000 - 2 * len(get(b"/smuggled"))) + LAST)
        assert first_answer(await everything(reader)).body == b"GET /last "
        assert [seen.path for seen in listening.seen] == [b"/early", b"/last"]


@pytest.mark.parametrize("name", ["extension", "size"])
async def test_an_endless_line_between_chunks_is_refused(name: str) -> None:
    raw = get(b"/a", b"Transfer-Encoding: chunked", method=b"POST") + b"5;" if name == "extension" else b""
    raw = raw or get(b"/a", b"Transfer-Encoding: chunked", method=b"POST") + b"0" * 10
    async with listener() as listening, caller(listening) as (reader, writer):
        reading = asyncio.ensure_future(everything(reader))
        writer.write(raw)
        sent = 0
        while not reading.done() and sent < 4_000_000:
            await asyncio.sleep(0.001)
            writer.write(b"0" * 10_000)
            sent += 10_000
        assert first_answer(await reading).status == 400
        assert listening.gone == 1


async def test_a_refusal_over_tls_is_sent_and_the_connection_closed(tmp_path: Path) -> None:
    server, client = certificate(tmp_path, "gw.example")
    async with listener(IMPATIENT, tls=server) as listening:
        for raw, status in ((get(b"/a", b"Connection: close"), 200), (BAD, 400)):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", listening.port, ssl=client, server_hostname="gw.example"
            )
            writer.write(raw)
            assert first_answer(await asyncio.wait_for(everything(reader), 10)).status == status
            writer.close()


# Upgrades


@pytest.mark.parametrize(
    "lines",
    [
        (b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"),
        (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk"),
        (b"Upgrade: TLS/1.0", b"Connection: keep-alive, upgrade"),
        (b"Upgrade: h2c", b"Proxy-Connection: upgrade"),  # which the parser reads as `Connection`
        (b"Proxy-Connection: x,\tUPGRADE ,", b"Connection: ,upgrade", b"Upgrade: h2c"),
    ],
)
async def test_an_upgrade_that_is_asked_for_is_not_given_and_the_request_is_served(lines: tuple[bytes, ...]) -> None:
    async with listener() as listening:
        raw = get(b"/a", *lines) + get(b"/b", *lines, b"Content-Length: 5", method=b"POST") + b"hello"
        raw += get(b"/c", *lines, b"Transfer-Encoding: chunked", method=b"POST") + b"5\r\nhello\r\n0\r\n\r\n"
        answers = answers_in(await say(listening, raw + LAST))
        assert [answer.body for answer in answers] == [b"GET /a ", b"POST /b hello", b"POST /c hello", b"GET /last "]
        headers = [header for seen in listening.seen for header in seen.headers]
        assert b"http2-settings" not in dict(headers)
        assert not any(name.endswith(b"connection") and b"upgrade" in value.lower() for name, value in headers)


async def test_a_body_behind_an_upgrade_is_never_the_next_request() -> None:
    smuggled = get(b"/smuggled")
    async with listener() as listening, caller(listening) as (reader, writer):
        head = b"Connection: upgrade", b"Upgrade: x", b"Content-Length: %d" % len(smuggled)
        writer.write(get(b"/a", *head, method=b"POST"))
        await asyncio.sleep(0.05)
        writer.write(smuggled)
        await asyncio.sleep(0.05)
        writer.write(LAST)
        assert len(answers_in(await everything(reader))) == 2
        assert [(seen.path, seen.body) for seen in listening.seen] == [(b"/a", smuggled), (b"/last", b"")]


async def test_an_upgrade_does_not_hide_what_is_refused() -> None:
    async with listener() as listening:
        lines = b"Connection: upgrade", b"Upgrade: x", b"X-Payment: a", b"X-Payment: b"
        assert first_answer(await say(listening, get(b"/a", *lines))).status == 400
        many = get(b"/wait") + get(b"/a", *lines[:2]) * 2000
        async with caller(listening) as (reader, writer):
            with structlog.testing.capture_logs() as logs:
                writer.write(many)
                await until(lambda: was_refused(logs))
            listening.go.set()
            assert answers_in(await everything(reader))[-1].status == 429


# Continue


async def test_a_caller_who_waits_for_100_gets_it_when_the_body_is_wanted() -> None:
    async with listener(IMPATIENT) as listening, caller(listening) as (reader, writer):
        writer.write(get(b"/a", b"Content-Length: 5", b"Expect: 100-continue", b"Connection: close", method=b"POST"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hello")
        assert first_answer(await everything(reader)).body == b"POST /a hello"


async def test_a_caller_who_waits_for_100_gets_an_early_answer_without_it() -> None:
    async with listener() as listening, caller(listening) as (reader, writer):
        writer.write(get(b"/early", b"Content-Length: 5", b"Expect: 100-continue", method=b"POST"))
        assert (await reader.readuntil(b"early")).startswith(b"HTTP/1.1 200")


async def test_nobody_is_told_to_continue_what_was_refused() -> None:
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    async with listener() as listening:
        head = get(b"/a", b"Transfer-Encoding: chunked", b"Expect: 100-continue", method=b"POST")
        answer = first_answer(await say(listening, head + b"no size\r\n"))
        assert (answer.status, answer.rest, listening.gone, faults) == (400, b"", 1, [])


# Patience


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\r\n",
        b"G",
        b"GET /a HTTP/1.1\r\n",
        b"GET /a HTTP/1.1\r\nHost: gw.example\r\nA: b",
        get(b"/a", b"Content-Length: 5", method=b"POST") + b"hell",
        get(b"/a", b"Transfer-Encoding: chunked", method=b"POST"),
        get(b"/a", b"Transfer-Encoding: chunked", method=b"POST") + b"5\r\nhello\r\n0\r\n",
    ],
)
async def test_a_caller_who_stops_in_the_middle_is_given_up(raw: bytes) -> None:
    async with listener(IMPATIENT) as listening:
        assert await say(listening, raw, seconds=10) == b""
        await until(lambda: not listening.connections)
        await until(lambda: listening.gone == len(listening.seen))


@pytest.mark.parametrize(
    ("first", "drop"),
    [
        (b"", b"\r\n"),
        (b"GET /a HTTP/1.1\r\nHost: gw.example\r\n", b"A: b\r\n"),
        (b"GET /a HTTP/1.1\r\nHost: gw.example\r\nA: ", b"b"),
        (get(b"/a", b"Content-Length: 1000", method=b"POST"), b"b"),
        (get(b"/a", b"Transfer-Encoding: chunked", method=b"POST"), b"1\r\nb\r\n"),
        (get(b"/a", b"Transfer-Encoding: chunked", method=b"POST") + b"1;", b"b"),
        (get(b"/early", b"Content-Length: 1000", method=b"POST"), b"b"),
        (get(b"/a"), b"\r\n"),
    ],
)
async def test_a_caller_who_drips_is_given_up(first: bytes, drop: bytes) -> None:
    async with listener(IMPATIENT, keep_alive_seconds=0) as listening, caller(listening) as (reader, writer):
        writer.write(first)
        reading = asyncio.ensure_future(everything(reader))
        loop = asyncio.get_running_loop()
        started = loop.time()
        while not reading.done():
            assert loop.time() - started < 20
            writer.write(drop)
            await asyncio.sleep(0.02)


async def test_a_caller_who_is_slow_but_steady_is_served() -> None:
    patience = Patience(head_seconds=1.5, body_seconds=1.5, sweep_seconds=0.05)
    async with listener(patience) as listening, caller(listening) as (reader, writer):
        writer.write(get(b"/a", b"Content-Length: 81920", b"Connection: close", method=b"POST"))
        for _ in range(40):
            writer.write(bytes(2048))
            await asyncio.sleep(0.05)
        assert first_answer(await everything(reader)).status == 200


async def test_a_caller_who_waits_for_a_slow_answer_is_never_given_up() -> None:
    async with listener(IMPATIENT) as listening, caller(listening) as (reader, writer):
        writer.write(get(b"/wait", b"Content-Length: 2", b"Connection: close", method=b"POST") + b"hi")
        await asyncio.sleep(0.8)
        listening.go.set()
        assert first_answer(await everything(reader)).body == b"POST /wait hi"


async def test_half_a_head_behind_a_request_that_is_being_answered_takes_nothing_from_it() -> None:
    async with listener(IMPATIENT) as listening, caller(listening) as (reader, writer):
        writer.write(get(b"/wait") + b"GET /ne")
        await asyncio.sleep(0.6)
        listening.go.set()
        assert first_answer(await asyncio.wait_for(everything(reader), 7)).body == b"GET /wait "


async def test_a_caller_who_does_not_read_is_given_up() -> None:
    async with listener(IMPATIENT) as listening:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(raw, ("127.0.0.1", listening.port))
        await loop.sock_sendall(raw, get(b"/endless"))
        await until(lambda: listening.seen and not listening.connections, 20)
        raw.close()


async def test_an_idle_connection_is_closed() -> None:
    quick = Patience(sweep_seconds=0.05)
    async with listener(quick, keep_alive_seconds=0) as listening, caller(listening) as (reader, writer):
        writer.write(get(b"/a"))
        assert first_answer(await asyncio.wait_for(everything(reader), 10)).status == 200


async def test_a_refused_caller_can_read_why_while_still_sending() -> None:
    """A connection that is closed over unread bytes is reset, and the reset overtakes the answer."""
    async with listener(IMPATIENT) as listening, caller(listening) as (reader, writer):
        writer.write(b"GET /a HTTP/1.1\r\nHost: gw.example\r\nA: " + b"b" * 2_000_000)
        reading = asyncio.ensure_future(everything(reader))
        await asyncio.sleep(0.1)
        assert first_answer(await asyncio.wait_for(reading, 10)).status == 431


async def test_a_refused_caller_who_does_not_leave_is_cut_off() -> None:
    async with listener(IMPATIENT) as listening, caller(listening) as (reader, writer):
        writer.write(BAD)
        assert first_answer(await everything(reader)).status == 400
        async with asyncio.timeout(20):
            while not writer.transport.is_closing():
                writer.write(LAST)
                await asyncio.sleep(0.02)
        await until(lambda: not listening.connections)
        assert listening.seen == []


# Serving


async def test_uvicorn_serves_with_it_and_finishes_what_was_accepted_when_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tollkeeper.edge.server.protocol._LAST_REQUEST_SECONDS", 2)  # else `late` may come too late
    application = Listening()
    config = Config(application, http=strict_protocol(render), lifespan="off", log_config=None, access_log=False)
    server = Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening_socket:
        serving = asyncio.ensure_future(server.serve(sockets=[listening_socket]))
        while not server.started:  # noqa: ASYNC110 - uvicorn tells it by this flag only
            await asyncio.sleep(0.01)
        application.port = listening_socket.getsockname()[1]
        async with (
            caller(application) as (busy, busy_writer),
            caller(application) as (idle, _),
            caller(application) as (late, late_writer),
            caller(application) as (half, half_writer),
        ):
            busy_writer.write(get(b"/wait", b"Content-Length: 2", method=b"POST") + b"hi")
            half_writer.write(b"GET /half HTTP/1.1\r\n")
            await until(lambda: application.seen)
            await asyncio.sleep(0.05)
            server.should_exit = True
            await until(lambda: listening_socket.fileno() < 0)  # uvicorn looks every tenth of a second
            late_writer.write(get(b"/late"))
            assert await asyncio.wait_for(everything(idle), 10) == b""
            half_writer.write(HOST + b"\r\n")
            application.go.set()
            for reader, body in ((busy, b"POST /wait hi"), (late, b"GET /late "), (half, b"GET /half ")):
                answer = first_answer(await asyncio.wait_for(everything(reader), 10))
                assert (answer.body, answer.headers[b"connection"]) == (body, b"close")
        await asyncio.wait_for(serving, 5)


async def test_requests_that_were_accepted_in_a_row_are_all_answered_when_the_server_stops() -> None:
    async with listener() as listening, caller(listening) as (reader, writer):
        writer.write(get(b"/wait") + get(b"/second") + get(b"/third"))
        await until(lambda: listening.seen)
        for connection in listening.connections:
            connection.shutdown()
        listening.go.set()
        answers = answers_in(await asyncio.wait_for(everything(reader), 10))
        assert [answer.status for answer in answers] == [200, 200, 200]


# Faults


async def test_a_fault_in_a_callback_is_logged_and_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tollkeeper.edge.server.protocol.read_head", broken)
    async with listener() as listening:
        with structlog.testing.capture_logs() as logs:
            answer = first_answer(await say(listening, get(b"/a")))
        assert (answer.status, answer.error["code"]) == (500, "INTERNAL_ERROR")
        assert [entry["event"] for entry in logs] == ["request_callback_failed", "request_refused"]


async def test_a_caller_who_vanishes_is_noticed_by_the_application() -> None:
    async with listener() as listening:
        async with caller(listening) as (_, writer):
            writer.write(get(b"/a", b"Content-Length: 5", method=b"POST") + b"he")
            await until(lambda: listening.seen)
        await until(lambda: listening.gone)
        await until(lambda: not listening.connections)
        assert (len(listening.seen), listening.gone) == (1, 1)
