"""Logs: whatever is logged, by us or a library, no secret is written (security A-57)."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import re
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from tollkeeper.core.configuration import LogFormat, LogLevel
from tollkeeper.core.keys.keyring import Secret
from tollkeeper.logs import Lines, configure_logs, is_secret_name, redact_text

CANARY = "5ec2e7" + "c0ffee" * 10
HASH = "0x" + "ab" * 32


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logs(LogLevel.INFO, LogFormat.AUTO, stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_time_level_logger_and_event_first(written: io.StringIO) -> None:
    structlog.get_logger("tollkeeper.test").info("happened", count=3, transaction=HASH)
    (line,) = lines(written)
    assert list(line)[:4] == ["timestamp", "level", "logger", "event"]
    assert (line["level"], line["logger"], line["event"]) == ("info", "tollkeeper.test", "happened")
    assert (line["count"], line["transaction"]) == (3, HASH)


@pytest.mark.parametrize(
    "name",
    [
        *("authorization", "Authorization", "x-payment", "X_PAYMENT", "signature", "private_key", "signerKey"),
        *("cookie", "access_token", "refreshToken", "credit_token", "X-Credit-Token", "secret", "password"),
        *("rpc_url", "rpc_urls"),
    ],
)
def test_a_field_of_a_secret_name_is_not_written_at_any_depth(written: io.StringIO, name: str) -> None:
    assert is_secret_name(name)
    structlog.get_logger().warning("x", **{name: CANARY}, deep={"list": [{name: CANARY}]}, pairs=({name: [CANARY]},))
    assert CANARY not in written.getvalue()


@pytest.mark.parametrize("name", ["path", "method", "network", "payer", "transaction", "request_id", "payment_key"])
def test_a_field_of_another_name_is_written(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "text",
    [
        "Bearer " + CANARY,
        "authorization: bearer " + CANARY,
        "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiIx" + CANARY + "." + CANARY,
        "X-Payment: " + base64.b64encode(json.dumps({"x402Version": 1, "payload": CANARY}).encode()).decode(),
        "0x" + CANARY * 2,
        "GET /files/1?signature=" + CANARY + "&x=1",
        "https://user:" + CANARY + "@node.example.org",
        "tkr_" + CANARY,
    ],
)
def test_what_looks_like_a_secret_is_not_written_wherever_it_stands(written: io.StringIO, text: str) -> None:
    encoded = base64.b64encode(CANARY.encode()).decode()[4:40]
    try:
        json.loads("{}")[text]
    except KeyError:
        structlog.get_logger().exception("failed", note=text, notes=[text], by_name={text: text})
    logging.getLogger("aiohttp.server").warning("library says %s", text)
    assert len(lines(written)) == 2
    assert CANARY not in written.getvalue()
    assert encoded not in written.getvalue()


def test_a_value_that_hides_itself_or_is_bytes_is_not_written(written: io.StringIO) -> None:
    structlog.get_logger().info("x", one=Secret(CANARY), two=CANARY.encode(), three={"four": [bytearray(b"c0ffee")]})
    assert "c0ffee" not in written.getvalue()


def test_a_traceback_shows_no_local_variables(written: io.StringIO) -> None:
    def fails(local: str) -> None:
        assert local
        raise ValueError("on purpose")

    try:
        fails(CANARY)
    except ValueError:
        structlog.get_logger().exception("failed")
    assert "on purpose" in written.getvalue()
    assert CANARY not in written.getvalue()


def fail(text: str) -> None:
    raise ValueError(text)


@pytest.mark.parametrize("form", [LogFormat.TEXT, LogFormat.JSON])
@pytest.mark.usefixtures("written")
def test_nothing_that_others_sent_moves_a_terminal(form: LogFormat) -> None:
    stream, hostile = io.StringIO(), "\x1b]0;owned\x07\x9b2J\r\nforged line\u202e\x00"
    configure_logs(LogLevel.INFO, form, stream)
    logger = structlog.get_logger()
    logger.info(hostile, path=hostile, details={hostile: [hostile]}, **{hostile: 1})
    logging.getLogger("library").warning("asked for %s", hostile)
    try:
        fail(hostile)
    except ValueError:
        logger.exception("failed")
    assert [one for one in stream.getvalue() if not (one.isprintable() or one == "\n")] == []
    lines = stream.getvalue().splitlines()
    assert not any(line.startswith("forged") for line in lines[:2])


def test_depth_is_bounded(written: io.StringIO) -> None:
    deep: list[Any] = []
    deep.append(deep)
    structlog.get_logger().info("x", deep=deep)
    assert len(lines(written)) == 1


def test_hashes_and_addresses_stay_readable() -> None:
    text = f"{HASH} 0x02b616f99b289b647FA2bFD2f56D9b03da516d39"
    assert redact_text(text) == text


async def test_a_line_of_a_request_is_the_one_that_structlog_writes(written: io.StringIO) -> None:
    handler = next(one for one in logging.getLogger().handlers if isinstance(one, Lines))
    for path in ("/slug", '/with/"quotes"\\', "/\u00e9\u2028", "/eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiIweDEyMzQifQ"):
        assert handler.request("tollkeeper.access", "GET", path, 402, 3, "0af1")
        log = structlog.get_logger("tollkeeper.access")
        log.info("request", method="GET", path=path, status=402, duration_ms=3, request_id="0af1")
    said = lines(written)
    assert len(said) == 8
    for mine, theirs in zip(said[::2], said[1::2], strict=True):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", mine["timestamp"])
        assert list(mine) == list(theirs)
        assert {**mine, "timestamp": ""} == {**theirs, "timestamp": ""}
    assert all("eyJ" not in line["path"] for line in said)


async def test_a_path_that_anybody_invents_is_not_kept() -> None:
    handler = Lines(io.StringIO(), is_json=True)
    tracemalloc.start()
    try:
        for number in range(100):
            handler.request("tollkeeper.access", "GET", f"/{number}" + "x" * 30_000, 404, 0, "1")
            handler.flush()
            handler.setStream(io.StringIO())
        assert tracemalloc.get_traced_memory()[0] < 300_000
    finally:
        tracemalloc.stop()


async def test_lines_of_requests_wait_for_a_moment_and_are_not_overtaken(written: io.StringIO) -> None:
    handler = next(one for one in logging.getLogger().handlers if isinstance(one, Lines))
    handler.request("tollkeeper.access", "GET", "/first", 200, 0, "1")
    assert written.getvalue() == ""
    structlog.get_logger("tollkeeper.test").info("happened")
    assert [line["event"] for line in lines(written)] == ["request", "happened"]
    handler.request("tollkeeper.access", "GET", "/second", 200, 0, "2")
    for _ in range(1000):
        if len(lines(written)) < 3:
            await asyncio.sleep(0.01)
    assert [line["path"] for line in lines(written) if line["event"] == "request"] == ["/first", "/second"]
    for number in range(10_000):
        handler.request("tollkeeper.access", "GET", "/many", 200, 0, str(number))
    assert len(lines(written)) > 9_000
    handler.flush()
    assert [line["request_id"] for line in lines(written)[3:]] == [str(number) for number in range(10_000)]
