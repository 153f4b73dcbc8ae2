"""The head of an answer leaves with its body, and never waits for one that is not there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tollkeeper.edge.server.joined_writes import JoinedWrites

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Recorded(asyncio.Transport):
    """A transport that keeps every write by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


@pytest.fixture
async def transport() -> AsyncIterator[Recorded]:
    yield Recorded()
    await asyncio.sleep(0)


async def test_head_and_body_leave_in_one_write(transport: Recorded) -> None:
    joined = JoinedWrites(transport, asyncio.get_running_loop(), transport.close)
    joined.write(HEAD)
    joined.write(b"body")
    assert transport.writes == [HEAD + b"body"]
    await asyncio.sleep(0)
    joined.write(b"more")
    assert transport.writes == [HEAD + b"body", b"more"]


async def test_a_head_without_a_body_waits_for_the_end_of_the_turn_only(transport: Recorded) -> None:
    joined = JoinedWrites(transport, asyncio.get_running_loop(), transport.close)
    joined.write(HEAD)
    assert transport.writes == []
    await asyncio.sleep(0)
    assert transport.writes == [HEAD]
    joined.write(b"body")
    assert transport.writes == [HEAD, b"body"]


async def test_closing_sends_the_head_first(transport: Recorded) -> None:
    joined = JoinedWrites(transport, asyncio.get_running_loop(), transport.close)
    joined.write(HEAD)
    joined.close()
    assert transport.writes == [HEAD]
    assert joined.is_closing()


async def test_nothing_is_written_to_a_connection_that_is_gone(transport: Recorded) -> None:
    joined = JoinedWrites(transport, asyncio.get_running_loop(), transport.close)
    joined.write(HEAD)
    transport.close()
    await asyncio.sleep(0)
    assert transport.writes == []


async def test_nothing_is_written_once_the_caller_is_gone(transport: Recorded) -> None:
    early, late = (JoinedWrites(transport, asyncio.get_running_loop(), transport.close) for _ in range(2))
    late.write(HEAD)
    transport.close()
    for joined in (early, late):
        joined.write(HEAD)
        joined.write(b"body")
    await asyncio.sleep(0)
    assert transport.writes == []
