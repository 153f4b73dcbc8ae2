"""The most that a wallet pays by `pay` within 24 hours on one network.

A payment is counted before it is signed. It is taken back once it is known that it was not charged.
"""

from __future__ import annotations

import time
from typing import Final

from tollkeeper.client.requests import RefusedError
from tollkeeper.client.state_folder import locked, open_folder, read_state, write_state
from tollkeeper.core.json_types import JsonObject
from tollkeeper.core.usdc import format_usdc

_FOLDER: Final = "spending"
_FILE: Final = "payments.json"
_DAY_SECONDS: Final = 24 * 3600


class DailyLimit:
    """Counts payments of all commands of this user."""

    def __init__(self, max_micro: int) -> None:
        """Raises: RefusedError where the folder cannot be made."""
        self._max_micro = max_micro
        self._folder = open_folder(_FOLDER)

    def count(self, wallet: str, network: str, amount_micro: int) -> int:
        """Count a payment that is about to be signed, and return its number for `take_back`.

        Raises: RefusedError where the wallet would pay more than the limit.
        """
        now = time.time_ns()
        with locked(self._folder):
            recent = self._recent(now)
            paid_micro = sum(one["micro"] for one in recent if (one["wallet"], one["network"]) == (wallet, network))
            if paid_micro + amount_micro > self._max_micro:
                raise RefusedError(
                    f"it costs {format_usdc(amount_micro)} USDC. The wallet paid {format_usdc(paid_micro)} "
                    f"on {network} in the last 24 hours, and --max-per-day allows {format_usdc(self._max_micro)}"
                )
            payment = {"at": now, "wallet": wallet, "network": network, "micro": amount_micro}
            write_state(self._folder / _FILE, {"payments": [*recent, payment]})
        return now

    def take_back(self, number: int) -> None:
        """Count a payment no longer: it was not charged."""
        with locked(self._folder):
            others = [one for one in self._recent(time.time_ns()) if one["at"] != number]
            write_state(self._folder / _FILE, {"payments": others})

    def _recent(self, now: int) -> list[JsonObject]:
        payments = read_state(self._folder / _FILE).get("payments", [])
        return [one for one in payments if one["at"] > now - _DAY_SECONDS * 1_000_000_000]
