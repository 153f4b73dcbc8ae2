"""Price of a place in the next block of an EVM network, and balances of accounts (contract 5.2; security A-24).

A node suggests the tip, and a node's word may cost the signer any amount up to the cap. So a tip is bounded by what
recent blocks paid; `core.evm.signed_transactions` says how. Fees are remembered for about a block.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.chains.evm.blocks import quantity
from tollkeeper.chains.replies import RpcError, RpcUnavailable
from tollkeeper.core.evm.signed_transactions import USUAL_TIP_WEI, bounded_tip

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tollkeeper.chains.replies import Answer
    from tollkeeper.chains.rpc import Call

_LIFETIME_SECONDS: Final = 2.0
_BLOCKS: Final = 20
# Of the gas in a block, so much paid this tip or less: nobody raises it with one dear transaction.
_PERCENTILE: Final = 60
TIP_CALLS: Final[list[Call]] = [
    ("eth_maxPriorityFeePerGas", []),
    ("eth_feeHistory", [hex(_BLOCKS), "latest", [_PERCENTILE]]),
]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A look at the market, good until then (event loop time). `paid_wei`: by recent blocks, each."""

    suggested_wei: int
    paid_wei: list[int] | None
    balances: dict[str, int]
    until: float


class Market:
    """Fees and balances of one network."""

    def __init__(self, ask: Callable[[Sequence[Call]], Awaitable[list[Answer]]]) -> None:
        self._ask = ask
        self._seen: _Seen | None = None

    async def tip_wei(self, base_fee_wei: int) -> int:
        """Return the tip for a transaction now. Raises: RpcUnavailable."""
        seen = await self._look(())
        return bounded_tip(seen.suggested_wei, seen.paid_wei, base_fee_wei)

    async def balances(self, addresses: tuple[str, ...]) -> list[int]:
        """Return what these accounts hold, in wei, in their order. Raises: RpcUnavailable."""
        seen = await self._look(addresses)
        return [seen.balances[address] for address in addresses]

    async def _look(self, addresses: tuple[str, ...]) -> _Seen:
        """Read tip and balances in one batch, about once a block."""
        now = asyncio.get_running_loop().time()
        known = self._seen
        if known is not None and now < known.until and all(address in known.balances for address in addresses):
            return known
        asked = tuple(dict.fromkeys((*addresses, *(known.balances if known is not None else ()))))
        tip, history, *held = await self._ask(
            [*TIP_CALLS, *(("eth_getBalance", [address, "latest"]) for address in asked)]
        )
        balances = dict(zip(asked, map(quantity, held), strict=True))
        suggested, paid = read_tips(tip, history)
        self._seen = _Seen(suggested, paid, balances, now + _LIFETIME_SECONDS)
        return self._seen


def read_tips(suggested: Answer, history: Answer) -> tuple[int, list[int] | None]:
    """Read the answers to `TIP_CALLS`: the node's tip, and what each of the recent blocks paid, None where it hides it.

    Raises: RpcUnavailable.
    """
    tip_wei = USUAL_TIP_WEI if isinstance(suggested, RpcError) else quantity(suggested)
    return tip_wei, _paid(history)


def _paid(history: Any) -> list[int] | None:  # noqa: ANN401 - JSON
    rewards = history.get("reward") if isinstance(history, dict) else None
    try:
        return [quantity(block[0]) for block in rewards or ()] or None
    except (RpcUnavailable, TypeError, LookupError):
        return None
