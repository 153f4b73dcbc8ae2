"""JSON-RPC to a node: joined without a timer, strict replies, two kinds of failure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from tollkeeper.chains.replies import RpcError, RpcUnavailable
from tollkeeper.chains.rpc import Rpc


class ScriptedNode:
    """A node that answers as `reply` says; `bodies` are the requests it got."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[Any] = []
        self.reply: Callable[[Any], Any] = echo
        self.delay_seconds = 0.0
        self.status = 200

    async def handle(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        self.bodies.append(body)
        await asyncio.sleep(self.delay_seconds)
        reply = self.reply(body)
        data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        return web.Response(body=data, status=self.status, content_type="application/json")


def echo(body: Any) -> Any:
    """Each call's first parameter is its result."""
    if isinstance(body, list):
        return [echo(call) for call in body]
    return {"jsonrpc": "2.0", "id": body["id"], "result": (body["params"] or [None])[0]}


@pytest_asyncio.fixture
async def node() -> AsyncIterator[ScriptedNode]:
    scripted = ScriptedNode()
    app = web.Application()
    app.router.add_post("/", scripted.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    scripted.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    yield scripted
    await runner.cleanup()


@pytest_asyncio.fixture
async def rpc(node: ScriptedNode) -> AsyncIterator[Rpc]:
    client = Rpc([node.url], timeout_seconds=2)
    yield client
    await client.close()


async def test_a_lone_call_goes_out_at_once_and_alone(node: ScriptedNode, rpc: Rpc) -> None:
    assert await rpc.call("echo", 7) == 7
    assert node.bodies == [{"jsonrpc": "2.0", "id": 0, "method": "echo", "params": [7]}]


async def test_calls_of_one_moment_share_a_batch_and_get_their_own_answers(node: ScriptedNode, rpc: Rpc) -> None:
    assert await asyncio.gather(*(rpc.call("echo", index) for index in range(50))) == list(range(50))
    assert [len(body) for body in node.bodies] == [50]


async def test_calls_asked_during_a_flight_leave_together_with_the_next(node: ScriptedNode, rpc: Rpc) -> None:
    node.delay_seconds = 0.05
    flights = [asyncio.create_task(rpc.call("echo", -index - 1)) for index in range(3)]
    for flight in flights[:1]:
        await asyncio.sleep(0)
        assert not flight.done()
    crowd = []
    for index in range(300):
        crowd.append(asyncio.create_task(rpc.call("echo", index)))
        await asyncio.sleep(0)
    assert await asyncio.gather(*crowd) == list(range(300))
    await asyncio.gather(*flights)
    assert len(node.bodies) < 20
    assert max(len(body) for body in node.bodies if isinstance(body, list)) <= 100


async def test_the_same_read_is_sent_once_per_batch(node: ScriptedNode, rpc: Rpc) -> None:
    assert await asyncio.gather(*(rpc.call("echo", "same") for _ in range(20))) == ["same"] * 20
    assert node.bodies == [{"jsonrpc": "2.0", "id": 0, "method": "echo", "params": ["same"]}]


async def test_an_error_of_one_call_is_its_own(node: ScriptedNode, rpc: Rpc) -> None:
    def reply(body: Any) -> Any:
        if isinstance(body, list):
            return [reply(call) for call in body]
        if body["method"] == "fail":
            return {"jsonrpc": "2.0", "id": body["id"], "error": {"code": 3, "message": "reverted", "data": "0x12"}}
        return echo(body)

    node.reply = reply
    good, bad = asyncio.ensure_future(rpc.call("echo", 1)), asyncio.ensure_future(rpc.call("fail"))
    assert await good == 1
    with pytest.raises(RpcError) as refusal:
        await bad
    assert (refusal.value.code, refusal.value.message, refusal.value.data) == (3, "reverted", "0x12")
    answers = await rpc.ask([("echo", [1]), ("fail", [])])
    assert answers[0] == 1
    assert isinstance(answers[1], RpcError)


async def test_a_null_result_with_a_null_error_is_a_result(node: ScriptedNode, rpc: Rpc) -> None:
    node.reply = lambda body: {"jsonrpc": "2.0", "id": body["id"], "result": None, "error": None}
    assert await rpc.call("echo", 1) is None


MALFORMED: dict[str, Callable[[Any], Any]] = {
    "not JSON": lambda _body: b"<html>",
    "not UTF-8": lambda _body: b'{"id":0,"result":"\xff"}',
    "an array for one call": lambda body: [echo(body)],
    "another id": lambda body: {**echo(body), "id": 5},
    "no id": lambda _body: {"result": 1},
    "neither result nor error": lambda body: {"jsonrpc": "2.0", "id": body["id"]},
    "result and error": lambda body: {**echo(body), "error": {"code": 1, "message": ""}},
    "an error without a code": lambda body: {"id": body["id"], "error": {"message": ""}},
    "an error that is a text": lambda body: {"id": body["id"], "error": "no"},
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_a_malformed_reply_tells_nothing(node: ScriptedNode, rpc: Rpc, case: str) -> None:
    node.reply = MALFORMED[case]
    with pytest.raises(RpcUnavailable):
        await rpc.call("echo", 1)


BATCHES: dict[str, Callable[[Any], Any]] = {
    "one missing": lambda body: echo(body)[:-1],
    "one twice": lambda body: [*echo(body)[:-1], echo(body)[0]],
    "a stranger": lambda body: [*echo(body)[:-1], {"id": 99, "result": 1}],
    "not JSON": lambda _body: b"[",
}


@pytest.mark.parametrize("case", BATCHES)
async def test_a_batch_that_is_not_answered_call_by_call_tells_nothing(node: ScriptedNode, rpc: Rpc, case: str) -> None:
    node.reply = BATCHES[case]
    with pytest.raises(RpcUnavailable):
        await rpc.ask([("echo", [1]), ("echo", [2])])


@pytest.mark.parametrize("largest", [1, 2, 10])
async def test_a_node_that_takes_only_small_batches_gets_them_and_is_remembered(
    node: ScriptedNode, rpc: Rpc, largest: int
) -> None:
    def reply(body: Any) -> Any:
        if isinstance(body, list) and (len(body) > largest or largest == 1):
            return {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "batch too large"}}
        return echo(body)

    node.reply = reply
    assert await asyncio.gather(*(rpc.call("echo", index) for index in range(50))) == list(range(50))
    node.bodies.clear()
    assert await asyncio.gather(*(rpc.call("echo", index) for index in range(50))) == list(range(50))
    sizes = [len(body) if isinstance(body, list) else 1 for body in node.bodies]
    assert max(sizes) <= largest
    assert len(sizes) < 50 or largest == 1


async def test_answers_of_a_batch_may_come_in_any_order(node: ScriptedNode, rpc: Rpc) -> None:
    node.reply = lambda body: list(reversed(echo(body)))
    assert await rpc.ask([("echo", [1]), ("echo", [2])]) == [1, 2]


async def test_a_timeout_an_http_error_and_a_dead_node_tell_nothing(node: ScriptedNode, rpc: Rpc) -> None:
    node.delay_seconds = 5
    with pytest.raises(RpcUnavailable, match="in time"):
        await rpc.call("echo", 1)
    node.delay_seconds, node.status = 0, 429
    with pytest.raises(RpcUnavailable, match="429"):
        await rpc.call("echo", 1)
    dead = Rpc(["http://127.0.0.1:1/secret-key"])
    with pytest.raises(RpcUnavailable) as refusal:
        await dead.call("echo", 1)
    assert "secret" not in str(refusal.value)
    await dead.close()


async def test_a_question_s_time_passes_also_while_it_waits_for_its_turn(node: ScriptedNode) -> None:
    node.delay_seconds = 30
    loop = asyncio.get_running_loop()

    async def seconds(rpc: Rpc, index: int) -> float:
        began = loop.time()
        with pytest.raises(RpcUnavailable):
            await rpc.call("echo", index)
        return loop.time() - began

    crowded = Rpc([node.url], timeout_seconds=1.5)
    # Thirty batches, three at a time, each given up after 1.5 s, would keep the last one waiting for 15 s.
    taken = await asyncio.gather(*(seconds(crowded, index) for index in range(3_000)))
    await crowded.close()
    assert max(taken) < 12  # 4.5 s and what a busy machine takes


async def test_a_raw_transaction_goes_out_on_its_own(node: ScriptedNode, rpc: Rpc) -> None:
    node.reply = lambda body: echo(body) if isinstance(body, list) else {**echo(body), "result": "0xhash"}
    sent, *reads = await asyncio.gather(rpc.send_raw(b"\x02\x01"), rpc.call("echo", 1), rpc.call("echo", 2))
    assert (sent, reads) == ("0xhash", [1, 2])
    assert {"jsonrpc": "2.0", "id": 0, "method": "eth_sendRawTransaction", "params": ["0x0201"]} in node.bodies


@pytest.mark.parametrize("result", [None, 5, {}])
async def test_a_send_without_a_hash_is_unclear(node: ScriptedNode, rpc: Rpc, result: object) -> None:
    node.reply = lambda body: {**echo(body), "result": result}
    with pytest.raises(RpcUnavailable):
        await rpc.send_raw(b"\x02")


async def test_a_refused_send_is_the_node_s_word(node: ScriptedNode, rpc: Rpc) -> None:
    node.reply = lambda body: {"id": body["id"], "error": {"code": -32000, "message": "already known"}}
    with pytest.raises(RpcError, match="already known"):
        await rpc.send_raw(b"\x02")


async def test_transactions_of_one_moment_travel_together_and_each_gets_its_own_answer(
    node: ScriptedNode, rpc: Rpc
) -> None:
    def reply(body: Any) -> Any:
        if isinstance(body, list):
            return [reply(call) for call in body]
        if body["params"] == ["bad"]:
            return {"jsonrpc": "2.0", "id": body["id"], "error": {"code": -32002, "message": "refused"}}
        return {**echo(body), "result": 7 if body["params"] == ["odd"] else body["params"][0]}

    node.reply = reply
    wanted = [*(f"raw {number}" for number in range(130)), "bad", "odd"]
    answers = await asyncio.gather(*(rpc.send_together("give", [one]) for one in wanted), return_exceptions=True)
    assert answers[:130] == wanted[:130]
    assert [type(answer) for answer in answers[130:]] == [RpcError, RpcUnavailable]
    assert [len(body) for body in node.bodies] == [100, 32]
    assert await rpc.send_together("give", ["alone"]) == "alone"
    assert isinstance(node.bodies[-1], dict)


async def test_transactions_reach_a_node_that_takes_no_batches(node: ScriptedNode, rpc: Rpc) -> None:
    def reply(body: Any) -> Any:
        if isinstance(body, list):
            return {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "batches are not taken"}}
        return echo(body)

    node.reply = reply
    assert await asyncio.gather(*(rpc.send_together("give", [name]) for name in "abc")) == list("abc")


async def test_transactions_that_a_node_does_not_answer_for_are_unclear_all_of_them(
    node: ScriptedNode, rpc: Rpc
) -> None:
    node.delay_seconds = 5
    sent = [asyncio.ensure_future(rpc.send_together("give", [name])) for name in "abc"]
    await asyncio.sleep(0.05)
    sent[0].cancel()
    assert [type(one) for one in await asyncio.gather(*sent, return_exceptions=True)] == [
        asyncio.CancelledError,
        RpcUnavailable,
        RpcUnavailable,
    ]
    leaving = asyncio.ensure_future(rpc.send_together("give", ["d"]))
    for _ in range(2):  # its exchange has been made, and has not begun
        await asyncio.sleep(0)
    await rpc.close()
    with pytest.raises(RpcUnavailable):
        await leaving


async def test_closing_fails_the_calls_in_flight(node: ScriptedNode, rpc: Rpc) -> None:
    node.delay_seconds = 5
    asked = asyncio.create_task(rpc.call("echo", 1))
    await asyncio.sleep(0.05)
    await rpc.close()
    with pytest.raises(RpcUnavailable):
        await asked


async def test_closing_fails_calls_whose_flight_has_not_begun(node: ScriptedNode, rpc: Rpc) -> None:
    waiting = asyncio.ensure_future(rpc.call("echo", 1))
    for _ in range(2):  # its flight has been made
        await asyncio.sleep(0)
    await rpc.close()
    async with asyncio.timeout(5):
        with pytest.raises(RpcUnavailable):
            await waiting
    assert node.bodies == []


async def test_closing_fails_calls_that_wait_for_their_flight(node: ScriptedNode, rpc: Rpc) -> None:
    node.delay_seconds = 5
    flying = []
    for _ in range(3):  # as many as there are at once
        flying.append(asyncio.ensure_future(rpc.call("echo", 1)))
        await asyncio.sleep(0.02)
    waiting = asyncio.ensure_future(rpc.call("echo", 2))
    await asyncio.sleep(0.02)
    await rpc.close()
    assert {type(told) for told in await asyncio.gather(*flying, waiting, return_exceptions=True)} == {RpcUnavailable}
    assert 2 not in [parameter for body in node.bodies for parameter in body["params"]]


async def test_nothing_is_asked_behind_the_close(node: ScriptedNode, rpc: Rpc) -> None:
    waiting = asyncio.ensure_future(rpc.call("echo", 1))
    await asyncio.sleep(0)  # its flight is to be made in the next turn
    await rpc.close()
    with pytest.raises(RpcUnavailable):
        await waiting
    with pytest.raises(RpcUnavailable):
        await rpc.send_raw(b"raw")
    assert node.bodies == []


async def test_a_caller_that_went_away_disturbs_nobody(node: ScriptedNode, rpc: Rpc) -> None:
    node.delay_seconds = 0.05
    gone = asyncio.create_task(rpc.call("echo", 1))
    stays = asyncio.create_task(rpc.call("echo", 2))
    await asyncio.sleep(0.01)
    gone.cancel()
    assert await stays == 2


async def test_an_answer_to_an_earlier_call_answers_no_other(node: ScriptedNode, rpc: Rpc) -> None:
    assert await rpc.call("echo", 1) == 1
    assert await asyncio.gather(*(rpc.call("echo", index) for index in range(3))) == [0, 1, 2]
    lone, batch = map(echo, node.bodies)
    node.reply = lambda body: batch if isinstance(body, list) else lone
    with pytest.raises(RpcUnavailable):
        await rpc.call("echo", 2)
    for asked in await asyncio.gather(*(rpc.call("echo", index) for index in range(3)), return_exceptions=True):
        assert isinstance(asked, RpcUnavailable)
    with pytest.raises(RpcUnavailable):
        await rpc.send_raw(b"1")


async def test_a_connection_whose_answers_are_one_call_behind_is_given_up() -> None:
    """As after an answer that came twice, when its copy met the next call."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        last = b""
        try:
            while True:
                reply = json.dumps(echo(await read_call(reader))).encode()
                body, last = last or reply, reply
                writer.write(http_reply(body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async with asking(serve) as rpc:
        for _ in range(3):
            assert await rpc.call("echo", 1) == 1
            with pytest.raises(RpcUnavailable, match="another call"):
                await rpc.call("echo", 2)


async def test_a_kept_connection_that_the_node_closed_meanwhile_fails_no_question() -> None:
    """Nodes close idle connections sooner than we do, and a question may meet the closing on its way."""
    opened, is_reset = 0, False

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        try:
            asked = await read_call(reader)
            writer.write(http_reply(json.dumps(echo(asked)).encode()))
            await reader.read(1)  # the next question has left when the closing comes
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", is_reset, 0)
            )
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async with asking(serve) as rpc:
        for is_reset in (False, True):  # noqa: B007 - the server looks at it
            crowd = [f"0x{index:02x}" for index in range(8)]
            for _ in range(3):
                assert await rpc.call("echo", 1) == 1
                assert await asyncio.gather(*(rpc.send_raw(bytes([index])) for index in range(8))) == crowd
    assert opened > 8


async def test_what_is_asked_once_more_goes_over_no_connection_that_another_question_has_left_meanwhile() -> None:
    """The node may have closed that one, too."""
    opened, is_told = 0, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        is_second = opened == 2
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            asked = await read_call(reader)
            writer.write(http_reply(json.dumps(echo(asked)).encode()))
            await reader.read(1)  # each connection has one question answered
            if is_second:
                await is_told.wait()
        writer.close()

    async with asking(serve) as rpc:
        assert [*await asyncio.gather(rpc.send_raw(b"\0"), rpc.send_raw(b"\1"))] == ["0x00", "0x01"]
        both = [asyncio.create_task(rpc.send_raw(bytes([number]))) for number in (2, 3)]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        is_told.set()
        assert await asyncio.gather(*both) == ["0x02", "0x03"]
    assert opened == 4


async def test_a_node_that_closes_also_new_connections_is_asked_twice_and_no_more() -> None:
    opened = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await read_call(reader)
        writer.close()

    async with asking(serve) as rpc:
        with pytest.raises(RpcUnavailable, match="cannot be reached"):
            await rpc.call("echo", 1)
    assert opened == 2


@contextlib.asynccontextmanager
async def asking(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[Rpc]:
    """Who asks a node that does with each connection what it likes."""
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        rpc = Rpc([f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"], timeout_seconds=5)
        yield rpc
        await rpc.close()


async def read_call(reader: asyncio.StreamReader) -> Any:
    """The body of one request. Raises: IncompleteReadError where none comes."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    return json.loads(await reader.readexactly(size))


def http_reply(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
