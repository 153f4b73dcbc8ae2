"""The JSON-RPC listener: what is not a proper request is refused, and the node stays up."""

from __future__ import annotations

import io
import json
from typing import Any

import aiohttp
import pytest

from tests.node_thread import run_in_thread
from tollkeeper.sandbox.evm.engine import EngineName
from tollkeeper.sandbox.evm.node import EvmNode
from tollkeeper.sandbox.rpc_server import MAX_BODY_BYTES, JsonRpcApp


async def _post(url: str, body: bytes) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(url, data=body) as response:
        return response.status, json.loads(await response.read())


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b"7", -32600),
        (b'{"id": 1}', -32600),
        (b'{"id": 1, "method": "eth_nothing", "params": []}', -32601),
        (b'{"id": 1, "method": "eth_chainId", "params": {}}', -32602),
        (b'{"id": 1, "method": "eth_chainId", "params": [1]}', -32602),
        (b'{"id": 1, "method": "eth_getBalance", "params": []}', -32602),
        (b'{"id": 1, "method": "eth_getBalance", "params": ["0x12", "latest"]}', -32602),
        (b'{"id": 1, "method": "eth_getBalance", "params": [7, "latest"]}', -32602),
        (b'{"id": 1, "method": "eth_call", "params": ["x"]}', -32602),
        (b'{"id": 1, "method": "eth_call", "params": [{"data": "12"}]}', -32602),
        (b'{"id": 1, "method": "eth_call", "params": [{}, "latest", {"0x1": {}}]}', -32602),
        (b'{"id": 1, "method": "eth_sendRawTransaction", "params": ["0x"]}', -32602),
        (b'{"id": 1, "method": "eth_getLogs", "params": [{"fromBlock": "0x5", "toBlock": "0x1"}]}', -32602),
        (b'{"id": 1, "method": "eth_call", "params": [{}, "0xffff"]}', -32000),
    ],
)
async def test_improper_request_is_refused(body: bytes, code: int) -> None:
    async with EvmNode() as node:
        status, answer = await _post(node.url, body)
    assert status == 200
    assert answer["error"]["code"] == code


async def test_other_methods_and_large_bodies_are_refused() -> None:
    async with EvmNode() as node, aiohttp.ClientSession() as session:
        async with session.get(node.url) as response:
            assert response.status == 405
        async with session.post(node.url, data=io.BytesIO(b" " * (MAX_BODY_BYTES + 1))) as response:
            assert response.status == 413


def test_faulty_method_is_an_internal_error() -> None:
    def fail() -> None:
        raise RuntimeError

    answer = JsonRpcApp({"fail": fail}).answer({"id": 3, "method": "fail"})
    assert answer == {"jsonrpc": "2.0", "id": 3, "error": {"code": -32603, "message": "internal error"}}


async def test_state_of_an_older_block_is_refused_and_named() -> None:
    async with EvmNode() as node:
        old = node.chain.head
        node.chain.mine()
        for tag in ("0x0", {"blockHash": old.hash}, {"blockNumber": "0x0"}):
            request = {"id": 1, "method": "eth_getBalance", "params": [node.wallets.buyer.address, tag]}
            _, answer = await _post(node.url, json.dumps(request).encode())
            assert "missing trie node" in answer["error"]["message"]


async def test_taken_port_is_an_error() -> None:
    async with EvmNode() as node:
        port = int(node.url.rsplit(":", 1)[1])
        with pytest.raises(OSError, match="in use"):
            await EvmNode(port=port).start()
        with pytest.raises(OSError, match="in use"), run_in_thread(EvmNode(port=port)):
            pass


async def test_client_version_names_the_engine() -> None:
    for engine in EngineName:
        async with EvmNode(engine=engine) as node:
            _, answer = await _post(node.url, b'{"id": 1, "method": "web3_clientVersion"}')
            assert answer["result"] == f"tollkeeper-sandbox/{engine}"
