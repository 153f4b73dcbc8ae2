"""The keys that settle on one network: who signs next, and who is passed over (contract 5.2; security A-25).

The one with the fewest transactions on their way; one whose money does not last for one more is passed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import structlog

from tollkeeper.hub.refusals import without_gas_money
from tollkeeper.storage.hub.claims import Funds

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tollkeeper.hub.metrics import HubMetrics

_LOG = structlog.get_logger("tollkeeper.hub")
# For so many settlements at the fees of the moment the signer's money should last, or the operator is told.
LOW_SETTLEMENTS: Final = 100


# The gas money of one signer on one network: for how many settlements does it last (security A-26)?


@dataclass(slots=True)
class SignerBalance:
    """Gas money as it was seen last; `affordable` is None before it was seen.

    `unit`: what its network counts money in; `reserve`: how much the network lets nobody spend.
    """

    network: str
    address: str
    gas_limit: int
    metrics: HubMetrics
    unit: str = "wei"
    reserve: int = 0
    affordable: int | None = None

    def see(self, balance: int, max_fee_per_gas: int) -> None:
        """Note the signer's money, and say when it runs low. Both are in this balance's unit."""
        affordable = self.spendable(balance) // max(1, max_fee_per_gas * self.gas_limit)
        was_low = self.is_low
        was_empty, self.affordable = self.is_empty, affordable
        self.metrics.signer_settlements.labels(self.network, self.address).set(affordable)
        about = {"network": self.network, "signer": self.address, f"balance_{self.unit}": balance}
        if self.is_empty and not was_empty:
            _LOG.error("signer_without_gas", **about)
        elif self.is_low and not was_low:
            _LOG.warning("signer_low_on_gas", **about, settlements=affordable)

    def spendable(self, balance: int) -> int:
        """Return how much of this balance may be spent."""
        return max(0, balance - self.reserve)

    def funds(self, cost_max: int) -> Funds | None:
        """Return what the signer may promise in all, in gas at the fees of the moment, as `cost_max` is.

        None if the balance was not seen yet.
        """
        if self.affordable is None:
            return None
        return Funds(self.address, self.affordable * self.gas_limit, cost_max, 0)

    @property
    def is_low(self) -> bool:
        """Does what was seen last not last for long?"""
        return self.affordable is not None and self.affordable < LOW_SETTLEMENTS

    @property
    def is_empty(self) -> bool:
        """Was there not enough for one settlement when the balance was seen last?"""
        return self.affordable == 0


class PolicyError(ValueError):
    """A transaction that this signer does not sign: a fault of the caller's code, never of a payment."""


class NamedSigner(Protocol):
    """A key of either family, known by the address of its account."""

    @property
    def address(self) -> str:
        """Address of the account that the key signs for."""


SignerT_co = TypeVar("SignerT_co", bound=NamedSigner, covariant=True)


@dataclass(slots=True, eq=False)
class Relayer(Generic[SignerT_co]):
    """One signer with what it may spend. `in_flight`: settlements that requests of this process carry."""

    signer: SignerT_co
    balance: SignerBalance
    in_flight: int = 0

    def can_pay(self, count: int = 1) -> bool:
        """Say whether its money lasts for so many more than are on their way. Yes while nobody has looked."""
        return self.balance.affordable is None or self.balance.affordable >= self.in_flight + count


class SignerPool(Generic[SignerT_co]):
    """Relayers of one network, at least one."""

    def __init__(self, relayers: Sequence[Relayer[SignerT_co]]) -> None:
        """Raises: ValueError for none, or one key twice."""
        self.relayers = tuple(relayers)
        self.addresses = tuple(relayer.signer.address for relayer in self.relayers)
        self._turn = 0
        if not self.relayers or len(set(self.addresses)) != len(self.addresses):
            raise ValueError("a network needs at least one signing key, and each key once")

    def can_pay(self, count: int, but: Collection[Relayer[NamedSigner]] = ()) -> bool:
        """Say whether any signer's money lasts for so many more, but for some signers."""
        return any(relayer.can_pay(count) for relayer in self.relayers if relayer not in but)

    def pick(self, count: int = 1, but: Collection[Relayer[NamedSigner]] = ()) -> Relayer[SignerT_co]:
        """Choose the next signer of so many settlements, except `but`.

        Raises: UNAVAILABLE if no signer has the money.
        """
        in_all = len(self.relayers)
        in_turn = [self.relayers[(self._turn + step) % in_all] for step in range(in_all)]
        able = [relayer for relayer in in_turn if relayer.can_pay(count) and relayer not in but]
        if not able:
            raise without_gas_money()
        picked = min(able, key=lambda relayer: relayer.in_flight)
        self._turn = (self.relayers.index(picked) + 1) % in_all
        return picked

    def require_money(self) -> None:
        """Raises: UNAVAILABLE where no signer has gas money left."""
        if not self.can_pay(1):
            raise without_gas_money()

    def of(self, address: str) -> Relayer[SignerT_co]:
        """Return the relayer with this address. Raises: KeyError for a stranger's."""
        for relayer in self.relayers:
            if relayer.signer.address == address:
                return relayer
        raise KeyError(address)

    def holds(self, address: str) -> bool:
        """Say whether this one is ours."""
        return address in self.addresses

    def see_balances(self, balances: Sequence[int], max_fee_per_gas: int) -> None:
        """Take note of what each signer holds, in the order of `addresses` and in its network's unit."""
        for relayer, balance in zip(self.relayers, balances, strict=True):
            relayer.balance.see(balance, max_fee_per_gas)
