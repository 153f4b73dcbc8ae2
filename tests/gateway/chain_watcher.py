"""A watcher of the chain: all that it knows of a payment is what the settlement's transaction says (security A-02).

An x402 payment on EVM is an EIP-3009 authorization and its signature, and both are calldata once it is settled. The
rest of an `X-Payment` header is the same for every payment of its network, and its layout is that of a known client.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from base64 import b64encode
from typing import Any, Final

from tests.core.reencodings import reencode
from tests.interop.stack import ask
from tollkeeper.core.evm.encoding import Authorization, checksum_address
from tollkeeper.core.x402.version1 import EvmPayload, Payment

LAYOUTS: Final = 60
TRANSFER: Final = bytes.fromhex("e3ee160e")


async def layouts_of(rpc_url: str, transaction: str, network: str = "base-sepolia") -> list[str]:
    """Distinct `X-Payment` headers of the payment that a transaction settled: first those of clients, then any."""
    found = await _node(rpc_url, "eth_getTransactionByHash", transaction)
    authorization, signature = read_calldata(bytes.fromhex(found["input"][2:]))
    headers = dict.fromkeys(_of_clients(authorization, signature, network))
    payment, dice = Payment(1, "exact", network, EvmPayload(authorization, signature)), random.Random(7)
    while len(headers) < LAYOUTS:
        headers[reencode(payment, dice).decode()] = None
    return list(headers)


async def newest_settlement(rpc_url: str) -> str:
    """The hash of the last transaction in the chain's last block."""
    block = await _node(rpc_url, "eth_getBlockByNumber", "latest", False)
    return str(block["transactions"][-1])


async def _node(rpc_url: str, method: str, *params: object) -> dict[str, Any]:
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    _, answer = await asyncio.to_thread(ask, rpc_url, request)
    result: dict[str, Any] = answer["result"]
    return result


def read_calldata(data: bytes) -> tuple[Authorization, bytes]:
    """Authorization and signature (r, s, v) in a call of the token."""
    assert data[:4] == TRANSFER
    words = [data[place : place + 32] for place in range(4, len(data), 32)]
    assert len(words) == 9
    number = [int.from_bytes(word, "big") for word in words]
    authorization = Authorization(
        payer="0x" + words[0][12:].hex(),
        pay_to="0x" + words[1][12:].hex(),
        value=number[2],
        valid_after=number[3],
        valid_before=number[4],
        nonce="0x" + words[5].hex(),
    )
    return authorization, words[7] + words[8] + bytes([number[6]])


def _of_clients(authorization: Authorization, signature: bytes, network: str) -> list[str]:
    """As programs write it: compact or spaced, addresses in either spelling, its members in either order."""
    headers = []
    for is_compact, is_mixed_case, is_turned in itertools.product((True, False), repeat=3):
        spelled = checksum_address if is_mixed_case else str
        signed = {
            "from": spelled(authorization.payer),
            "to": spelled(authorization.pay_to),
            "value": str(authorization.value),
            "validAfter": str(authorization.valid_after),
            "validBefore": str(authorization.valid_before),
            "nonce": authorization.nonce,
        }
        payload: dict[str, Any] = {"signature": "0x" + signature.hex(), "authorization": signed}
        if is_turned:
            payload = dict(reversed(payload.items()))
        body = {"x402Version": 1, "scheme": "exact", "network": network, "payload": payload}
        text = json.dumps(body, separators=(",", ":") if is_compact else None)
        headers.append(b64encode(text.encode()).decode())
    return headers
