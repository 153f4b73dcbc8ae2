"""Whatever a Solana node puts in the place of any part of an answer is read, or is no answer (A-15)."""

from __future__ import annotations

import copy
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import pytest
from solders.hash import Hash

from tests.chains.solana_node import FEE_PAYER, WALLETS, paying
from tests.chains.test_solana_uses import ASSET, executed
from tests.core.solana_payments import account_of
from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.chains.solana.blockhashes import Lifetime
from tollkeeper.chains.solana.chain import SolanaChain
from tollkeeper.chains.solana.expiry_proof import has_expired
from tollkeeper.chains.solana.payment_lookup import holding, is_listed, read_use
from tollkeeper.chains.solana.payments import payments_of, read_payments
from tollkeeper.core.settlement.states import LIFETIME_DOUBTED_SECONDS
from tollkeeper.core.solana.rules import payment_key, read_transfer
from tollkeeper.sandbox.rpc_server import JsonRpcApp
from tollkeeper.sandbox.solana.chain import FINAL_SLOTS, RECENT_SLOTS, EmbeddedSolanaChain
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.sandbox.solana.rpc import solana_rpc_app

SHOWN: Final[tuple[Any, ...]] = (
    None,
    [],
    {"a": 1},
    "x",
    -1,
    2**63,
    10**400,
    1.5,
    True,
    [None],
    ["AAAA", "base64"],
    [["a"], "base64"],
)
DENIED: Final = (None, [None])  # in the place of a status: there is none
NEVER: Final = "5" * 87  # a transaction that nobody sent

Place = tuple[Any, ...]


class Puts(JsonRpcApp):
    """A node that puts something in one place of each answer to one method."""

    def __init__(self, chain: EmbeddedSolanaChain, method: str, place: Place, shown: object) -> None:
        super().__init__({})
        self._honest = solana_rpc_app(chain)
        self._method, self._place, self._shown = method, place, shown

    def call(self, method: str, params: object = ()) -> Any:
        answer = self._honest.call(method, params)
        return put(answer, self._place, self._shown) if method == self._method else answer


def put(answer: Any, place: Place, shown: object) -> Any:
    """The answer with that in this place, where it has such a place."""
    if not place:
        return shown
    changed = part = copy.deepcopy(answer)
    try:
        for step in place[:-1]:
            part = part[step]
        part[place[-1]] = shown
    except (KeyError, IndexError, TypeError):
        return answer
    return changed


def places(answer: Any, place: Place = ()) -> Iterator[Place]:
    """Every part of an answer; of a list the first two."""
    yield place
    parts = answer.items() if isinstance(answer, dict) else enumerate(answer[:2]) if isinstance(answer, list) else ()
    for step, part in parts:
        yield from places(part, (*place, step))


async def test_what_stands_in_the_place_of_any_part_is_read_or_no_answer_and_hides_nothing(
    node: SolanaNode, solana: SolanaChain
) -> None:
    """Every fourth of what may stand there: each part meets three, and neighbouring parts meet others."""
    await put_everywhere(node, solana, every=4)


@pytest.mark.long
@pytest.mark.timeout(900)  # it waits for slots, a hundred seconds in all
async def test_whatever_stands_in_the_place_of_any_part_is_read_or_no_answer_and_hides_nothing(
    node: SolanaNode, solana: SolanaChain
) -> None:
    await put_everywhere(node, solana, every=1)


async def put_everywhere(node: SolanaNode, solana: SolanaChain, *, every: int) -> None:
    """Puts things in the place of each part of each answer, and reads all that is read of a node."""
    draft, never = paying(node, 1_000), paying(node, 1_000)
    name, key = executed(node, draft), payment_key(ASSET, read_transfer(draft.payload()))
    executed(node, paying(node, 1_000))
    node.chain.next_slot(2 * (RECENT_SLOTS + FINAL_SLOTS))
    honest, blockhash = node.rpc, str(Hash.from_bytes(never.blockhash))
    lifetime, since = Lifetime(1, RECENT_SLOTS), int(time.time()) - 2 * LIFETIME_DOUBTED_SECONDS
    owner = WALLETS.owner.address
    readers: tuple[Callable[[], Awaitable[object]], ...] = (
        solana.open,
        solana.head,
        lambda: solana.reader.see_final([name]),
        lambda: solana.balances([owner]),
        lambda: solana.recipient(owner, str(account_of(owner))),
        lambda: read_use(solana, name),
        lambda: is_listed(solana.reader, key.payer, name),
        lambda: holding(solana.reader, str(account_of(owner)), owner, [name]),
        lambda: has_expired(solana.quorum, NEVER, blockhash, lifetime, None),
        lambda: has_expired(solana.quorum, NEVER, blockhash, lifetime, since),
        lambda: read_payments(solana, [str(FEE_PAYER.pubkey())], [], [], range(10**6)),
        lambda: payments_of(solana, name),
    )
    asked: dict[str, list[Any]] = {
        "getSignaturesForAddress": [key.payer],
        "getTransaction": [name],
        "getSignatureStatuses": [[name]],
        "getSlot": [],
        "getEpochInfo": [],
        "getFirstAvailableBlock": [],
        "getBlocks": [1, node.chain.slot, {"commitment": "finalized"}],
        "getBlock": [1],
        "getBlockTime": [node.chain.slot],
        "isBlockhashValid": [blockhash],
        "getGenesisHash": [],
        "getAccountInfo": [ASSET.address],
        "getBalance": [owner],
    }
    for method, params in asked.items():
        for number, place in enumerate(places(honest.call(method, params))):
            for shown in SHOWN[number % every :: every]:
                node.rpc = Puts(node.chain, method, place, shown)
                for read in readers:
                    await said(read())
                has_gone = await said(has_expired(solana.quorum, name, blockhash, lifetime, None))
                is_denied = method == "getSignatureStatuses" and shown in DENIED
                assert is_denied or has_gone is not True, (method, place, shown)
                node.rpc = honest
                await solana.open()


async def said(answer: Awaitable[object]) -> object:
    """What is read; None for no answer. Nothing else is raised."""
    try:
        return await answer
    except RpcUnavailable:
        return None


def test_what_is_put_is_there() -> None:
    answer = {"value": [{"slot": 1}]}
    assert list(places(answer)) == [(), ("value",), ("value", 0), ("value", 0, "slot")]
    assert put(answer, ("value", 0, "slot"), 2) == {"value": [{"slot": 2}]}
    assert put(answer, (), None) is None
    assert put(answer, ("value", 1), 2) == answer
