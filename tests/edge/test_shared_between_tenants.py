"""One tenant's calls stop nobody else's: connections, memory and disk are shared between tenants (A-58)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.edge.forwarded import ForwardRequest, ForwardResponse, forward
from tests.edge.targets import OK, Connection, answers, forwarder, serves, sized, target
from tests.edge.test_calls import until
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.target_addresses import TargetUrl
from tollkeeper.edge.target.forwarder import Forwarder
from tollkeeper.edge.target.relay import TargetUse
from tollkeeper.edge.target.spool import SpooledBody, SpoolRoom

MIB = 1024 * 1024
LARGE = 10 * MIB


def call(there: TargetUrl, use: TargetUse) -> ForwardRequest:
    return ForwardRequest(there, "GET", [], use=use)


async def refusal(edge: Forwarder, request: ForwardRequest) -> Code:
    with pytest.raises(ApiError) as refused:
        await forward(edge, request, b"")
    return refused.value.code


async def close_at_once(connection: Connection) -> None:
    connection.writer.close()


async def test_targets_that_hang_at_many_addresses_leave_connections_to_other_tenants() -> None:
    async with AsyncExitStack() as targets, forwarder(places=24) as edge, target(serves(sized(b"x"))) as good:
        hanging = [await targets.enter_async_context(target(answers(), host=f"127.0.0.{n}")) for n in range(10, 22)]
        mine = TargetUse("attacker")
        waiting = [asyncio.ensure_future(forward(edge, call(one.at(), mine), b"")) for one in hanging * 4]
        await until(lambda: sum(one.connections for one in hanging) == 8)
        refused = [one for one in waiting if one.done()]
        assert len(refused) == len(waiting) - 8
        assert {one.exception().code for one in refused} == {Code.UNAVAILABLE}  # type: ignore[union-attr] # each failed
        for other in ("honest", "another"):
            answered = await asyncio.gather(*(forward(edge, call(good.at(), TargetUse(other)), b"") for _ in range(4)))
            assert [one.status for one in answered] == [200] * 4
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
        assert edge.places.held == 0


async def test_of_calls_that_failed_were_given_up_or_ended_nothing_stays_taken() -> None:
    async with (
        forwarder(places=8) as edge,
        target(answers()) as hanging,
        target(close_at_once) as closing,
        target(serves(sized(b"x"))) as good,
    ):
        use = TargetUse("owner")
        for _ in range(10):
            given_up = asyncio.ensure_future(forward(edge, call(hanging.at(), use), b""))
            await asyncio.sleep(0)
            given_up.cancel()
            await asyncio.wait([given_up])
            assert await refusal(edge, call(closing.at(), use)) is Code.UPSTREAM_UNREACHABLE
            unreachable = TargetUrl("http", "127.0.0.1", 9, "/", "")
            assert await refusal(edge, call(unreachable, use)) is Code.UPSTREAM_UNREACHABLE
            assert (await forward(edge, call(good.at(), use), b"")).status == 200
        assert edge.places.held == edge.room.memory.held == edge.room.disk.held == 0


class Disk:
    """A disk of a gibibyte, of which spools have what they wrote and others have the rest."""

    def __init__(self) -> None:
        self.total = 1024 * MIB
        self.left_by_others = 700 * MIB
        self.room = SpoolRoom()

    @property
    def free(self) -> int:
        return self.left_by_others - self.room._written_bytes  # noqa: SLF001 - a real disk knows


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr("tollkeeper.edge.target.spool.shutil.disk_usage", lambda _folder: made)
    return made


async def test_large_answers_that_are_not_taken_leave_room_for_those_of_other_tenants(disk: Disk) -> None:
    async with forwarder() as edge, target(serves(sized(bytes(LARGE)))) as there:
        disk.room = edge.room
        mine, taken = TargetUse("attacker"), list[ForwardResponse]()
        left_bytes = disk.free - disk.total // 10
        while len(taken) < 70 and (answer := await answered(edge, call(there.at(), mine))):
            taken.append(answer)
        assert len(taken) == left_bytes // 3 // LARGE
        asked = len(there.heads)
        for _ in range(70 - len(taken)):
            assert await refusal(edge, call(there.at(), mine)) is Code.UNAVAILABLE
        assert len(there.heads) == asked  # the target works for no answer that has no room
        for other in ("honest", "another"):
            answer = await forward(edge, call(there.at(), TargetUse(other)), b"")
            assert isinstance(answer.body, SpooledBody)
            assert len(b"".join([part async for part in answer.body])) == LARGE
        for answer in taken:
            answer.close()
        assert edge.room.disk.held == 0
        assert await is_answered(edge, call(there.at(), mine))


@pytest.mark.parametrize("declares", [True, False])
async def test_an_answer_that_finds_no_room_is_asked_for_again_once_there_is_some(
    disk: Disk,
    declares: bool,  # noqa: FBT001 - a parameter
) -> None:
    body = bytes(2 * MIB)
    whole = sized(body) if declares else OK + b"Connection: close\r\n\r\n" + body
    async with forwarder() as edge, target(answers(whole, wait=False)) as there:
        disk.room = edge.room
        disk.left_by_others = disk.total // 10 + 4 * MIB
        edge.room.look()
        await until(lambda: edge.room.disk.left == 4 * MIB)
        mine = TargetUse("owner")
        for _ in range(3):
            assert await refusal(edge, call(there.at(), mine)) is Code.UNAVAILABLE
        assert len(there.heads) == 1
        disk.left_by_others = 700 * MIB
        async with asyncio.timeout(10):
            # A refusal has the disk looked at.
            while not await is_answered(edge, call(there.at(), mine)):  # noqa: ASYNC110 - it is what is waited for
                await asyncio.sleep(0.01)
        assert edge.places.held == edge.room.memory.held == 0


async def answered(edge: Forwarder, request: ForwardRequest) -> ForwardResponse | None:
    try:
        return await forward(edge, request, b"")
    except ApiError:
        return None


async def is_answered(edge: Forwarder, request: ForwardRequest) -> bool:
    answer = await answered(edge, request)
    if answer is not None:
        answer.close()
    return answer is not None
