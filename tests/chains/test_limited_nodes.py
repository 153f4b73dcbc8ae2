"""Public nodes as they are: they limit batches, want credentials, redirect, and say so in many ways.

What a node does not do is learned at its first refusal, kept, and told to the operator in the node's own words, without
the keys that its URL may hold.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from structlog.testing import capture_logs

from tollkeeper.chains.nodes import BATCH_SIZE_MAX, Node
from tollkeeper.chains.replies import RpcError, RpcUnavailable
from tollkeeper.chains.rpc import Rpc

WORDS = "Batch of more than %d requests are not allowed on free tier"


@dataclass
class Server:
    """An HTTP server that does with each request what `answer` says; `requests` are what it got."""

    answer: Callable[[web.Request, Any], web.Response]
    origin: str = ""
    requests: list[tuple[str, Any, str]] = field(default_factory=list)  # path, body, Authorization

    async def handle(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        self.requests.append((request.path_qs, body, request.headers.get("Authorization", "")))
        return self.answer(request, body)


@pytest_asyncio.fixture
async def serve() -> AsyncIterator[Callable[[Callable[[web.Request, Any], web.Response]], Any]]:
    runners = []

    async def start(answer: Callable[[web.Request, Any], web.Response]) -> Server:
        server = Server(answer)
        app = web.Application()
        app.router.add_post("/{path:.*}", server.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return server

    yield start
    for runner in runners:
        await runner.cleanup()


def echo(call: Any) -> Any:
    return {"jsonrpc": "2.0", "id": call["id"], "result": call["params"][0]}


def answered(body: Any) -> web.Response:
    return web.json_response([echo(call) for call in body] if isinstance(body, list) else echo(body))


def refusing(largest: int, status: int, form: str, words: str) -> Callable[[web.Request, Any], web.Response]:
    """A node that takes so many calls in a batch, and refuses more of them by a status and in a form."""

    def answer(_request: web.Request, body: Any) -> web.Response:
        if not isinstance(body, list) or len(body) <= largest:
            return answered(body)
        error = {"code": 31, "message": words}
        forms: dict[str, Any] = {
            "text": None,
            "one object": {"jsonrpc": "2.0", "id": None, "error": error},
            "a list of one": [{"jsonrpc": "2.0", "id": body[0]["id"], "error": error}],
            "a list of one without an id": [{"jsonrpc": "2.0", "id": None, "error": error}],
            "each call": [{"jsonrpc": "2.0", "id": call["id"], "error": error} for call in body],
            "a message": {"message": words},
        }
        if forms[form] is None:
            return web.Response(text=words, status=status)
        return web.json_response(forms[form], status=status)

    return answer


REFUSALS = [
    *(
        (status, form)
        for status in (400, 413, 429, 500)
        for form in ("text", "one object", "a list of one", "each call")
    ),
    (200, "one object"),
    (200, "a list of one"),
    (200, "a list of one without an id"),
    (200, "each call"),
    (413, "a message"),
]


@pytest.mark.parametrize("largest", [1, 2, 3, 10, 20])
@pytest.mark.parametrize(("status", "form"), REFUSALS, ids=str)
async def test_a_node_that_limits_batches_is_asked_in_batches_that_it_takes(
    serve: Any, largest: int, status: int, form: str
) -> None:
    node = await serve(refusing(largest, status, form, WORDS % largest))
    rpc = Rpc([node.origin])
    assert await asyncio.gather(*(rpc.call("echo", one) for one in range(60))) == list(range(60))
    node.requests.clear()
    assert await asyncio.gather(*(rpc.call("echo", one) for one in range(60))) == list(range(60))
    sizes = [len(body) if isinstance(body, list) else 1 for _, body, _ in node.requests]
    assert max(sizes) == largest
    (limit,) = rpc.nodes.limits
    assert WORDS % largest in limit
    await rpc.close()


async def test_a_limit_that_is_not_named_is_found_by_halves(serve: Any) -> None:
    node = await serve(refusing(10, 413, "text", "payload too large"))
    rpc = Rpc([node.origin])
    with capture_logs() as lines:
        assert await asyncio.gather(*(rpc.call("echo", one) for one in range(60))) == list(range(60))
    assert rpc.nodes.all[0].batch_size(asyncio.get_running_loop().time()) in range(5, 11)
    assert [line["event"] for line in lines] == ["node_limit_learned"]
    await rpc.close()


async def test_more_is_tried_again_much_later() -> None:
    node = Node(1, "http://node.test/")
    node.refused_batch(100.0, 64, "no")
    assert node.batch_size(101.0) == 32
    assert node.batch_size(100.0 + 3600) == 64
    assert node.batch_size(100.0 + 2 * 3600) == BATCH_SIZE_MAX


async def test_an_error_that_all_calls_share_is_theirs_where_one_alone_is_answered_with_it(serve: Any) -> None:
    def answer(_request: web.Request, body: Any) -> web.Response:
        calls = body if isinstance(body, list) else [body]
        errors = [{"id": call["id"], "error": {"code": -32601, "message": "no such method"}} for call in calls]
        return web.json_response(errors if isinstance(body, list) else errors[0])

    node = await serve(answer)
    rpc = Rpc([node.origin])
    told = await rpc.ask([("echo", [1]), ("echo", [2])])
    assert [(one.code, one.message) for one in told] == [(-32601, "no such method")] * 2
    assert rpc.nodes.limits == []
    await rpc.close()


@pytest.mark.parametrize("status", [401, 403, 429, 500, 502, 503])
async def test_a_node_that_serves_nothing_is_passed_over_and_its_words_are_kept_without_keys(
    serve: Any, status: int
) -> None:
    words = "no more of key s3cr3t-key-1234 today\x1b[31m, user:passw0rd-1!"

    def answer(_request: web.Request, _body: Any) -> web.Response:
        return web.json_response({"error": {"code": 1, "message": words}, "id": None}, status=status)

    node = await serve(answer)
    other = await serve(lambda _request, body: answered(body))
    with_key = node.origin.replace("://", "://user:passw0rd-1%21@") + "/v2/s3cr3t-key-1234"
    rpc = Rpc([with_key, other.origin])
    with capture_logs() as lines:
        assert await rpc.ask([("echo", [1]), ("echo", [2])]) == [1, 2]
    (line,) = lines
    assert (line["event"], line["node"]) == ("node_failed", 1)
    assert f"HTTP status {status}" in line["reason"]
    assert "no more of key ... today" in line["reason"]
    assert not any(secret in line["reason"] for secret in ("s3cr3t", "passw0rd", "\x1b"))
    await rpc.close()
    alone = Rpc([with_key])
    with pytest.raises(RpcUnavailable, match=r"no more of key \.\.\. today"):
        await alone.call("echo", 1)
    await alone.close()


async def test_a_refusal_of_one_call_is_the_node_s_answer_whatever_its_status(serve: Any) -> None:
    def answer(_request: web.Request, body: Any) -> web.Response:
        error = {"code": 35, "message": "ranges over 10000 blocks are not supported on freetier"}
        return web.json_response({"id": body["id"], "error": error}, status=400)

    node = await serve(answer)
    other = await serve(lambda _request, body: answered(body))
    rpc = Rpc([node.origin, other.origin])
    with pytest.raises(RpcError, match="ranges over 10000 blocks"):
        await rpc.call("eth_getLogs", {})
    assert other.requests == []
    await rpc.close()


async def test_credentials_of_a_url_are_sent_as_basic_authentication(serve: Any) -> None:
    node = await serve(lambda _request, body: answered(body))
    rpc = Rpc([node.origin.replace("://", "://us%40er:pa%3Ass@") + "/path?x=1"])
    assert await rpc.call("echo", 7) == 7
    ((path, _, authorization),) = node.requests
    assert path == "/path?x=1"
    assert authorization == "Basic " + base64.b64encode(b"us@er:pa:ss").decode()
    await rpc.close()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_of_a_node_to_its_own_host_is_followed_once_and_kept(serve: Any, status: int) -> None:
    there = await serve(lambda _request, body: answered(body))
    location = f"{there.origin}/new?key=1"
    here = await serve(lambda _request, _body: web.Response(status=status, headers={"Location": location}))
    rpc = Rpc([here.origin.replace("://", "://user:pass@") + "/old"])
    assert await rpc.call("echo", 1) == 1
    assert await rpc.ask([("echo", [2]), ("echo", [3])]) == [2, 3]
    assert len(here.requests) == 1
    assert [path for path, _, _ in there.requests] == ["/new?key=1"] * 2
    assert {authorization for _, _, authorization in there.requests} == {
        "Basic " + base64.b64encode(b"user:pass").decode()
    }
    assert rpc.nodes.limits == ["node 1 redirects to http://127.0.0.1"]
    await rpc.close()


@pytest.mark.parametrize("location", ["http://localhost:1/", "ftp://127.0.0.1/", "", "http://[/"])
async def test_a_redirect_to_another_host_without_encryption_is_refused_and_named(serve: Any, location: str) -> None:
    here = await serve(lambda _request, _body: web.Response(status=307, headers={"Location": location}))
    rpc = Rpc([here.origin])
    with pytest.raises(RpcUnavailable, match="redirects to"):
        await rpc.call("echo", 1)
    assert rpc.nodes.all[0].url == here.origin
    await rpc.close()


async def test_redirects_in_a_circle_end(serve: Any) -> None:
    here = await serve(lambda request, _body: web.Response(status=307, headers={"Location": request.path + "x"}))
    rpc = Rpc([here.origin + "/"])
    with pytest.raises(RpcUnavailable, match="without end"):
        await rpc.call("echo", 1)
    await rpc.close()


async def test_a_node_that_has_enough_calls_for_now_has_said_nothing_of_batches_that_it_took_before(serve: Any) -> None:
    refusals = 0

    def answer(_request: web.Request, body: Any) -> web.Response:
        nonlocal refusals
        if refusals and isinstance(body, list):  # a single call gets in all the same
            refusals -= 1
            return web.Response(text="request rate limited", status=429)
        return answered(body)

    node = await serve(answer)
    rpc = Rpc([node.origin])
    calls = [("echo", [number]) for number in range(8)]
    assert await rpc.ask(calls) == list(range(8))
    refusals = 1
    assert await rpc.ask(calls) == list(range(8))
    assert rpc.nodes.limits == []
    assert [len(body) for _, body, _ in node.requests] == [8, 8, 8]
    await rpc.close()


@pytest.mark.parametrize("status", [400, 500])
async def test_one_call_that_a_node_refuses_by_a_status_of_the_batch_makes_no_batch_smaller(
    serve: Any, status: int
) -> None:
    def answer(_request: web.Request, body: Any) -> web.Response:
        if "dear" in json.dumps(body):
            return web.Response(text="query timeout exceeded", status=status)
        return answered(body)

    node = await serve(answer)
    rpc = Rpc([node.origin])
    calls = [("echo", [number]) for number in range(8)]
    assert await rpc.ask(calls) == list(range(8))
    with pytest.raises(RpcUnavailable, match="query timeout exceeded"):
        await rpc.ask([*calls[:-1], ("echo", ["dear"])])
    assert rpc.nodes.limits == []
    node.requests.clear()
    assert await rpc.ask(calls) == list(range(8))
    assert [len(body) for _, body, _ in node.requests] == [8]
    await rpc.close()


async def test_what_a_contract_says_where_it_reverts_is_no_word_of_the_node(serve: Any) -> None:
    def answer(_request: web.Request, body: Any) -> web.Response:
        error = {"code": -32000, "message": "execution reverted: rate limit exceeded"}
        return web.json_response({"id": body["id"], "error": error})

    node = await serve(answer)
    rpc = Rpc([node.origin])
    with pytest.raises(RpcError, match="execution reverted"):
        await rpc.call("eth_call", {})
    assert len(node.requests) == 1
    assert rpc.nodes.all[0].failures == 0
    await rpc.close()


async def test_a_redirect_is_kept_until_the_node_does_not_answer_there(serve: Any) -> None:
    there = await serve(lambda _request, body: answered(body))
    is_here = False

    def answer(_request: web.Request, body: Any) -> web.Response:
        return answered(body) if is_here else web.Response(status=307, headers={"Location": there.origin + "/new"})

    here = await serve(answer)
    rpc = Rpc([here.origin + "/v2/s3cr3t-key-1234"])
    assert await rpc.call("echo", 1) == 1
    is_here = True
    there.answer = lambda _request, _body: web.Response(status=503, text="no more of s3cr3t-key-1234 here")
    with pytest.raises(RpcUnavailable, match=r"no more of \.\.\. here"):
        await rpc.call("echo", 2)
    assert await rpc.call("echo", 3) == 3
    await rpc.close()
