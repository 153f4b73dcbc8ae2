"""Every transfer by authorization to some addresses, in a range of blocks (security I6, I7).

A Transfer alone may be anybody's ordinary payment; with the AuthorizationUsed of its payer in the same transaction it
is the carrying out of a signed payment. A node that does not answer, or has had enough of our questions, is asked again
a little later: much may have been read by then. Whether the books agree is decided in `core.settlement.reconciliation`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.chains.evm.blocks import counted
from tollkeeper.chains.evm.logs import read_log
from tollkeeper.chains.replies import RefusedByStatus, RpcUnavailable, is_limit
from tollkeeper.chains.sightings import Expected, Verdict, require_agreement
from tollkeeper.core.evm.encoding import AUTHORIZATION_USED_TOPIC, TRANSFER_TOPIC
from tollkeeper.core.evm.receipt_logs import Log, Transfer, shows_transfer, topic_of
from tollkeeper.core.settlement.reconciliation import ChainPayment
from tollkeeper.core.x402.version1 import PaymentKey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tollkeeper.chains.evm.chain import EvmChain
    from tollkeeper.chains.replies import Answer

BLOCKS_AT_ONCE: Final = 2_000
_ADDRESSES_AT_ONCE: Final = 100
_RECEIPTS_AT_ONCE: Final = 50
_TRIES: Final = 5  # half a block of Base apart
_PAUSE_SECONDS: Final = 1.0


async def payments_of(chain: EvmChain, transaction_hash: str) -> list[ChainPayment]:
    """Return the payments that one transaction carried out, once it is as deep as settlements of their amounts must be.

    Raises: RpcUnavailable.
    """
    (receipt,) = await chain.rpc.ask([("eth_getTransactionReceipt", [transaction_hash])])
    if receipt is None:
        return []
    found, depths = _payments_in(chain, receipt), chain.config.depths
    sightings = await chain.look([_expected(transaction_hash, one, depths.of(one.value)) for one in found])
    require_agreement(sightings)
    return [
        one
        for one, sighting in zip(found, sightings, strict=True)
        if sighting.verdict is Verdict.TRANSFERRED and sighting.deep
    ]


def _expected(transaction_hash: str, one: ChainPayment, depth_blocks: int) -> Expected:
    key = one.key
    return Expected(transaction_hash, key.asset, key.payer, one.pay_to, one.value, key.nonce, depth_blocks)


async def read_payments(chain: EvmChain, recipients: Sequence[str], blocks: range) -> list[ChainPayment]:
    """Return the payments to these addresses in these blocks, in the chain's order.

    Raises: RpcUnavailable, also where a node has not come to the last of these blocks: behind one address there may be
    several.
    """
    hashes: dict[str, None] = {}
    for start in range(blocks.start, blocks.stop, BLOCKS_AT_ONCE):
        part = range(start, min(start + BLOCKS_AT_ONCE, blocks.stop))
        for first in range(0, len(recipients), _ADDRESSES_AT_ONCE):
            topics = [topic_of(address) for address in recipients[first : first + _ADDRESSES_AT_ONCE]]
            for log in await _transfers(chain, topics, part):
                hashes[_text(log, "transactionHash")] = None
    wanted = list(hashes)
    found: list[ChainPayment] = []
    for first in range(0, len(wanted), _RECEIPTS_AT_ONCE):
        some = wanted[first : first + _RECEIPTS_AT_ONCE]
        for receipt in await _receipts(chain, some):
            found += [one for one in _payments_in(chain, receipt) if one.pay_to in recipients]
    return sorted(found, key=lambda payment: payment.block_number)


async def _transfers(chain: EvmChain, recipients: list[str], blocks: range) -> list[object]:
    """Return the transfers to these addresses, asked for in ranges as large as the nodes show at once."""
    found: list[object] = []
    first = blocks.start

    async def ask(count: int) -> Answer:
        last = first + count - 1
        wanted = {
            "address": chain.require_asset().address,
            "topics": [TRANSFER_TOPIC, None, recipients],
            "fromBlock": hex(first),
            "toBlock": hex(last),
        }
        return await _listed(chain, wanted, last)

    while first < blocks.stop:
        count, logs = await chain.logs.shown(ask, blocks.stop - first)
        found += logs
        first += count
    return found


async def _listed(chain: EvmChain, wanted: Mapping[str, object], last: int) -> Answer:
    """Return the answer of a node that has come to the block `last`. Waits for a node that lags a little."""
    for tries_left in reversed(range(_TRIES)):
        try:
            logs, head = await chain.rpc.ask([("eth_getLogs", [wanted]), ("eth_blockNumber", [])])
            if counted(head) >= last:
                return logs
        except RefusedByStatus:
            raise
        except RpcUnavailable:
            if not tries_left:
                raise
        if tries_left:
            await asyncio.sleep(_PAUSE_SECONDS)
    raise RpcUnavailable(f"the node has not come to block {last}")


async def _receipts(chain: EvmChain, hashes: Sequence[str]) -> list[Answer]:
    """Return the receipts of these transactions, in any order; what a node refuses is asked again, and nothing else."""
    answers: dict[str, Answer] = {}
    for tries_left in reversed(range(_TRIES)):
        left = [one for one in hashes if one not in answers or is_limit(answers[one])]
        try:
            told = await chain.rpc.ask([("eth_getTransactionReceipt", [one]) for one in left])
            answers.update(zip(left, told, strict=True))
            if not any(map(is_limit, told)):
                break
        except RpcUnavailable:
            if not tries_left:
                raise
        if tries_left:
            await asyncio.sleep(_PAUSE_SECONDS)
    return list(answers.values())


def _payments_in(chain: EvmChain, receipt: Any) -> list[ChainPayment]:  # noqa: ANN401 - JSON
    """Return the payments that one transaction carried out. Raises: RpcUnavailable where the receipt cannot be read."""
    try:
        logs = [read_log(log) for log in receipt["logs"]]
        sender, transaction_hash = receipt["from"].lower(), receipt["transactionHash"].lower()
        number = counted(receipt["blockNumber"])
        return [
            ChainPayment(
                PaymentKey(chain.network.name, one.asset, one.payer, one.nonce),
                one.pay_to,
                one.value,
                transaction_hash,
                sender,
                number,
            )
            for one in _candidates(chain.require_asset().address, logs)
            if shows_transfer(logs, one)
        ]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RpcUnavailable("the node's receipt cannot be read") from error


def _candidates(asset: str, logs: Sequence[Log]) -> list[Transfer]:
    """Each use of an authorization with each transfer of its payer: which of them belong together is asked next."""
    events = [log for log in logs if log.address == asset and len(log.topics) == 3]
    uses = [log for log in events if log.topics[0] == AUTHORIZATION_USED_TOPIC]
    moves = [log for log in events if log.topics[0] == TRANSFER_TOPIC]
    found = {
        Transfer(asset, _address(use.topics[1]), _address(move.topics[2]), int(move.data, 16), use.topics[2])
        for use in uses
        for move in moves
        if use.topics[1] == move.topics[1]
    }
    return sorted(found, key=lambda one: (one.nonce, one.pay_to, one.value))


def _text(log: object, name: str) -> str:
    value = log.get(name) if isinstance(log, dict) else None
    if not isinstance(value, str):
        raise RpcUnavailable("the node's log cannot be read")
    return value.lower()


def _address(topic: str) -> str:
    return "0x" + topic[-40:]
