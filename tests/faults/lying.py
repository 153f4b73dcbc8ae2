"""What a node may say that is not so, by the method that it says it of: each lie for a payment that is under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import Act, ChaosNode
from tests.hub.hub_under_test import TestPayment
from tests.hub.test_lying_nodes import FORGED, denying, liar
from tollkeeper.core.evm.encoding import keccak256

# What is answered in place of an answer to a call.
Falsify: TypeAlias = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]
ELSEWHERE: Final = "0x" + "ab" * 32


@dataclass(frozen=True)
class Lie:
    """One lie. `make` gives what tells it; it is told of `method`, and of what else it takes to be consistent."""

    name: str
    method: str
    make: Callable[[ChainUnderTest, TestPayment], Falsify]
    is_swallowed: bool = False  # what it asks for is not done


class Told:
    """A lie at a node, and whether it was told."""

    def __init__(self, node: ChaosNode, lie: Lie, falsify: Falsify) -> None:
        self._lie = lie
        self._falsify = falsify
        self.times = 0
        node.falsify = self._tell
        if lie.is_swallowed:
            node.on(lie.method, Act.SWALLOW)

    def _tell(self, call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        told = self._falsify(call, answer)
        self.times += call["method"] == self._lie.method and told != answer
        return told


def _instead(method: str, name: str, result: Callable[[Any], Any]) -> Lie:
    """Another result; nothing else of what the node says fits to it."""

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        is_of_it = call["method"] == method and "result" in answer and answer["result"] is not None
        return answer | {"result": result(answer["result"])} if is_of_it else answer

    return Lie(name, method, lambda _chain, _payment: falsify)


def _refusing(method: str, message: str, code: int = -32000) -> Lie:
    """An error, of what was carried out."""

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        refused = {"jsonrpc": "2.0", "id": answer["id"], "error": {"code": code, "message": message}}
        return refused if call["method"] == method else answer

    return Lie(f"refused: {message}", method, lambda _chain, _payment: falsify)


def _swallowing(name: str, result: Callable[[str], Any]) -> Lie:
    """A transaction that is not passed on; it is said to be taken."""

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        is_of_it = call["method"] == "eth_sendRawTransaction"
        return answer | {"result": result(call["params"][0])} if is_of_it else answer

    return Lie(name, "eth_sendRawTransaction", lambda _chain, _payment: falsify, is_swallowed=True)


def _hash_of(raw: str) -> str:
    return "0x" + keccak256(bytes.fromhex(raw[2:])).hex()


def _denying(method: str, proof: str) -> Lie:
    return Lie(f"it never can be made: {proof}", method, lambda _chain, payment: denying(payment, proof))


OF_CALLS: Final = (
    _refusing("eth_call", "execution reverted: ECRecover: invalid signature", 3),
    _refusing("eth_call", "execution reverted: FiatTokenV2: authorization is used or canceled", 3),
    _refusing("eth_call", "out of gas"),
    _instead("eth_call", "all is one", lambda _: f"0x{1:064x}"),
    _instead("eth_call", "no word", lambda _: True),
)
# Of calls that return something, which a transfer does not.
OF_READS: Final = (
    _instead("eth_call", "nothing is called", lambda _: "0x"),
    _instead("eth_call", "all is nought", lambda told: "0x" + "00" * (len(told) // 2 - 1)),
)
OF_PRICES: Final = (
    _instead("eth_maxPriorityFeePerGas", "for nothing", lambda _: "0x0"),
    _instead("eth_maxPriorityFeePerGas", "beyond all caps", lambda _: hex(10**18)),
    _instead("eth_maxPriorityFeePerGas", "no number", lambda _: "a lot"),
    _instead("eth_feeHistory", "dear blocks", lambda _: {"reward": [[hex(10**18)]]}),
    _instead("eth_feeHistory", "no blocks", lambda _: {"reward": [[], ["a lot"]]}),
)
OF_SENDS: Final = (
    _refusing("eth_sendRawTransaction", "nonce too low"),
    _refusing("eth_sendRawTransaction", "nonce too high"),
    _refusing("eth_sendRawTransaction", "already known"),
    _refusing("eth_sendRawTransaction", "insufficient funds for gas * price + value"),
    _refusing("eth_sendRawTransaction", "replacement transaction underpriced"),
    _instead("eth_sendRawTransaction", "another was taken", lambda _: ELSEWHERE),
    _instead("eth_sendRawTransaction", "no hash", lambda _: 7),
    _swallowing("taken, and never passed on", _hash_of),
    _swallowing("another taken, and nothing passed on", lambda _: ELSEWHERE),
)
OF_RECEIPTS: Final = (
    _instead("eth_getTransactionReceipt", "nothing is there", lambda _: None),
    _instead("eth_getTransactionReceipt", "it reverted", lambda told: told | {"status": "0x0", "logs": []}),
    *(_instead("eth_getTransactionReceipt", name, forge) for name, forge in FORGED.items()),
)
# Of one that reverted, which shows no events.
_WITHOUT_EVENTS: Final = (
    "another hash",
    "another block",
    "a block that is not there yet",
    "no block",
    "no status",
    "a list",
)
OF_REVERTED: Final = (
    _instead("eth_getTransactionReceipt", "it succeeded", lambda told: told | {"status": "0x1"}),
    *(one for one in OF_RECEIPTS if one.name in {"nothing is there", *_WITHOUT_EVENTS}),
)
# Of what is not there yet.
OF_NOTHING: Final = (Lie("a transfer that nobody made", "eth_getTransactionReceipt", liar),)
OF_BLOCKS: Final = (
    _instead("eth_getBlockByNumber", "of another time", lambda told: told | {"timestamp": "0x1"}),
    _instead("eth_getBlockByNumber", "of the far future", lambda told: told | {"timestamp": hex(2**40)}),
    _instead("eth_getBlockByNumber", "another block", lambda told: told | {"hash": ELSEWHERE}),
    _instead("eth_getBlockByNumber", "far ahead", lambda told: told | {"number": hex(2**40)}),
    _instead("eth_getBlockByNumber", "too dear", lambda told: told | {"baseFeePerGas": hex(10**18)}),
    _instead("eth_getBlockByNumber", "no block", lambda _: None),
)
OF_HEIGHTS: Final = (
    _instead("eth_blockNumber", "far ahead", lambda _: hex(2**40)),
    _instead("eth_blockNumber", "at the beginning", lambda _: "0x0"),
    _instead("eth_blockNumber", "nowhere", lambda _: None),
)
OF_NONCES: Final = (
    _instead("eth_getTransactionCount", "none was used", lambda _: "0x0"),
    _instead("eth_getTransactionCount", "many were used", lambda told: hex(int(told, 16) + 5)),
)
OF_PROOFS: Final = (
    _instead("eth_getLogs", "nobody used it", lambda _: []),
    _instead("eth_getLogs", "another used it", lambda told: [log | {"transactionHash": ELSEWHERE} for log in told]),
    _instead("eth_getTransactionByHash", "there is no such one", lambda _: None),
    _instead("eth_getTransactionByHash", "a third one's", lambda told: told | {"from": "0x" + "12" * 20}),
)
OF_ENDS: Final = (
    _denying("eth_getTransactionReceipt", "foreign"),
    _denying("eth_getTransactionReceipt", "reverted"),
    _denying("eth_getBlockByNumber", "expired"),
)
