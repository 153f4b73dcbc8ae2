"""A network that settlements are carried out on, as far as every family's is the same (contract 5.2, 5.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import UNSET, UnsetType

from tollkeeper.core.api.bodies import Body, Count

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tollkeeper.chains.sightings import Submission
    from tollkeeper.core.api.errors import ApiError
    from tollkeeper.core.networks import Network
    from tollkeeper.hub.admission import Admission, FeeBudget


class SupportedAsset(Body):
    """A token that is settled."""

    address: str
    name: str
    symbol: str
    decimals: Count
    token_program: str | UnsetType = UNSET


class SettlingChain(Protocol):
    """One network behind its nodes, as far as every family's is the same."""

    is_refused: bool
    problem: str

    @property
    def network(self) -> Network:
        """The network."""

    @property
    def asset(self) -> object | None:
        """Asset that is settled; None while the network cannot be used."""

    async def open(self, prepare: Callable[[], Awaitable[None]] | None = None) -> None:
        """Ask every node who it is. `prepare` is awaited before a network is used that was not in use."""

    async def submit(self, raw: bytes, transaction_hash: str) -> Submission:
        """Hand a signed transaction to the nodes."""


class SettlingAccount(Protocol):
    """One network with the signers that settle on it."""

    @property
    def chain(self) -> SettlingChain:
        """The network behind its nodes."""

    @property
    def gas_budget(self) -> FeeBudget:
        """Budget of what settling may cost in an hour."""

    @property
    def admission(self) -> Admission:
        """Bound of how many settlements are under way."""

    def without_money(self) -> ApiError:
        """Return the refusal of a settlement that no signer can pay for."""

    async def look_around(self) -> None:
        """Look for what the open network offers beyond what settling needs."""

    async def see_money(self) -> None:
        """Look at the signers' money of an open network."""


AccountT = TypeVar("AccountT", bound=SettlingAccount)
AccountT_contra = TypeVar("AccountT_contra", bound=SettlingAccount, contravariant=True)
PayloadT = TypeVar("PayloadT")
