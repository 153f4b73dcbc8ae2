"""The sandbox's play: an owner and a buyer whose keys are public, at the press of a button."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Played(NamedTuple):
    """The answer that the test buyer got."""

    status: int
    text: str
    receipt: str


class Play(Protocol):
    """The test wallets' hands; only a sandbox has them."""

    @property
    def owner(self) -> str:
        """The test owner's wallet."""

    def sign(self, message: str) -> str:
        """Return the test owner's signature of a login."""

    async def pay(self, url: str, method: str) -> Played:
        """Let the test buyer pay for one call of a PayGate. Raises: ApiError."""
