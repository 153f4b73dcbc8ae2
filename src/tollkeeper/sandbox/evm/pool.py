"""The sandbox chain's transaction pool: what was sent and is not mined yet, with a real node's rules for nonces.

A transaction whose nonce lies ahead waits until the gap closes. One with the nonce of a waiting transaction replaces it
for a tenth more in both fees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tollkeeper.sandbox.rpc_server import ServedRpcError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tollkeeper.sandbox.evm.transactions import CheckedTransaction

_REPLACEMENT_PERCENT: Final = 110


class Pool:
    """Transactions by sender and nonce, in the order in which they came."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[int, CheckedTransaction]] = {}
        self._by_hash: dict[str, CheckedTransaction] = {}

    def __len__(self) -> int:
        return len(self._by_hash)

    def get(self, transaction_hash: str) -> CheckedTransaction | None:
        """The waiting transaction of that hash."""
        return self._by_hash.get(transaction_hash)

    def add(self, transaction: CheckedTransaction) -> None:
        """Raises: RpcError where it is here already, or does not outbid the one it would replace."""
        if transaction.hash in self._by_hash:
            raise ServedRpcError("already known")
        queue = self._queues.setdefault(transaction.sender, {})
        waiting = queue.get(transaction.nonce)
        if waiting is not None:
            if not _outbids(transaction, waiting):
                raise ServedRpcError("replacement transaction underpriced")
            self.remove(waiting)
            queue = self._queues.setdefault(transaction.sender, {})
        queue[transaction.nonce] = transaction
        self._by_hash[transaction.hash] = transaction

    def remove(self, transaction: CheckedTransaction) -> None:
        """Forget one; nothing happens where it is not here."""
        if self._by_hash.pop(transaction.hash, None) is None:
            return
        queue = self._queues[transaction.sender]
        del queue[transaction.nonce]
        if not queue:
            del self._queues[transaction.sender]

    def next_nonce(self, sender: str, mined_nonce: int) -> int:
        """The first nonce that the sender has neither used nor waiting: eth_getTransactionCount at `pending`."""
        queue = self._queues.get(sender, {})
        while mined_nonce in queue:
            mined_nonce += 1
        return mined_nonce

    def ready(self, nonce_of: Callable[[str], int], base_fee_per_gas: int) -> Iterator[CheckedTransaction]:
        """Yield what the next block can take, first come first: each sender's unbroken run of nonces.

        Every transaction of it pays the base fee. Do not change the pool while reading this; take a list first.
        """
        expected: dict[str, int] = {}
        held: dict[str, dict[int, CheckedTransaction]] = {}
        for transaction in self._by_hash.values():
            sender = transaction.sender
            nonce = expected.setdefault(sender, nonce_of(sender))
            if transaction.nonce != nonce:
                held.setdefault(sender, {})[transaction.nonce] = transaction
                continue
            following: CheckedTransaction | None = transaction
            while following is not None and following.max_fee_per_gas >= base_fee_per_gas:
                yield following
                expected[sender] += 1
                following = held.get(sender, {}).pop(expected[sender], None)


def _outbids(newer: CheckedTransaction, older: CheckedTransaction) -> bool:
    return (
        newer.max_fee_per_gas * 100 >= older.max_fee_per_gas * _REPLACEMENT_PERCENT
        and newer.max_priority_fee_per_gas * 100 >= older.max_priority_fee_per_gas * _REPLACEMENT_PERCENT
    )
