"""Payments and credits that this machine's user keeps, one file for each payment.

- A payment is kept before it is sent. While its outcome is unknown, it is the one that is sent again.
- The command that sends a payment holds a lock on its file. A payment whose command ended has no lock: another command
  takes it over.
- Once a payment is known to have bought credits, its file keeps their token; once nothing is left, the file goes.
- A payment belongs to a gate (an URL without query) and to a wallet. It is good below the gate's path as well.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Final

import msgspec
from yarl import URL

from tollkeeper.client.requests import RefusedError
from tollkeeper.client.state_folder import locked, open_folder, read_state, write_state
from tollkeeper.core.json_types import JsonObject
from tollkeeper.core.usdc import format_usdc

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

_FOLDER: Final = "purchases"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPurchase:
    """One payment. `headers` send it; they are empty once its outcome is known, and then `token` spends its credits.

    `counted`: its number in the day's limit. `left`: credits that were left when the gateway told last; None where it
    did not tell.
    """

    id: str
    gate: str
    wallet: str
    network: str
    amount_micro: int
    at_seconds: int
    counted: int = 0
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    token: str | None = field(default=None, repr=False)
    left: int | None = None

    @property
    def is_sent(self) -> bool:
        """Is the outcome of this payment not known?"""
        return bool(self.headers)


def gate_of(url: str, resource: object = None) -> str:
    """Return the URL of the gate that a link calls: the 402's `resource` if the link is at or below it, else the link.

    A seller cannot name another one's gate in this way, and so gets no other one's token.
    """
    link = URL(url).with_query(None).with_fragment(None)
    try:
        named = URL(str(resource)).with_query(None).with_fragment(None)
    except ValueError:
        return str(link)
    return str(named) if resource and _covers(named, link) else str(link)


def _covers(gate: URL, link: URL) -> bool:
    if not gate.absolute or gate.origin() != link.origin():
        return False
    path = gate.raw_path.rstrip("/")
    return link.raw_path == path or link.raw_path.startswith(path + "/")


class PurchaseStore:
    """The purchases of a user, in a folder of their own."""

    def __init__(self) -> None:
        """Raises: RefusedError where the folder cannot be made."""
        self._folder = open_folder(_FOLDER)
        self._held: dict[str, int] = {}

    def all(self) -> list[KeptPurchase]:
        """Return every kept purchase, the oldest first."""
        found = (_purchase_in(path) for path in self._folder.glob("*.json"))
        return sorted((one for one in found if one is not None), key=lambda one: (one.at_seconds, one.id))

    def take_unsettled(self, url: str, wallets: Collection[str]) -> KeptPurchase | None:
        """Return a payment of unknown outcome for this link that no other command is sending, and hold it."""
        for purchase in self._of(url, wallets):
            if purchase.is_sent and self._hold(purchase.id):
                now = _purchase_in(self._path(purchase.id))
                if now is not None and now.is_sent:
                    return now
                self._let_go(purchase.id)
        return None

    def credits_for(self, url: str, wallets: Collection[str]) -> KeptPurchase | None:
        """Return the oldest purchase for this link whose token may spend a credit."""
        spendable = (one for one in self._of(url, wallets) if not one.is_sent and one.token and one.left != 0)
        return next(spendable, None)

    def keep_sent(
        self, *, gate: str, wallet: str, network: str, amount_micro: int, counted: int, headers: Mapping[str, str]
    ) -> KeptPurchase:
        """Keep a payment that is about to be sent, and hold it. Raises: RefusedError."""
        purchase = KeptPurchase(
            id=secrets.token_hex(16),
            gate=gate,
            wallet=wallet,
            network=network,
            amount_micro=amount_micro,
            at_seconds=int(time.time()),
            counted=counted,
            headers=dict(headers),
        )
        self.write(purchase)
        return purchase

    def write(self, purchase: KeptPurchase) -> None:
        """Put a purchase in the place of its former state. A payment of unknown outcome is held. Raises: RefusedError.

        Its file is another one from now on, so the lock is taken before the former one is let go.
        """
        write_state(self._path(purchase.id), asdict(purchase))
        former = self._held.pop(purchase.id, None)
        if purchase.is_sent:
            self._hold(purchase.id)
        if former is not None:
            os.close(former)

    def settle(self, purchase: KeptPurchase, token: str | None, left: int | None) -> None:
        """Keep what is left of a purchase whose payment is known to be good. Raises: RefusedError."""
        if token is None or left == 0:
            self.forget(purchase)
        else:
            self.write(replace(purchase, headers={}, token=token, left=left))

    def forget(self, purchase: KeptPurchase) -> None:
        """Drop a purchase of which nothing is left, or whose payment was not taken."""
        with suppress(FileNotFoundError):
            self._path(purchase.id).unlink()
        self._let_go(purchase.id)

    def _of(self, url: str, wallets: Collection[str]) -> Iterable[KeptPurchase]:
        link = URL(url)
        return (one for one in self.all() if one.wallet in wallets and _covers(URL(one.gate), link))

    def _path(self, purchase_id: str) -> Path:
        return self._folder / f"{purchase_id}.json"

    def _hold(self, purchase_id: str) -> bool:
        """Lock the payment's file for this process. Return False if another one sends it, or it is gone."""
        try:
            descriptor = os.open(self._path(purchase_id), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._held[purchase_id] = descriptor
        return True

    def _let_go(self, purchase_id: str) -> None:
        if (descriptor := self._held.pop(purchase_id, None)) is not None:
            os.close(descriptor)


def _purchase_in(path: Path) -> KeptPurchase | None:
    content: JsonObject = read_state(path)
    try:
        return msgspec.convert(content, KeptPurchase)
    except msgspec.ValidationError:  # of another version
        return None


# The most that a wallet pays by `pay` within 24 hours on one network. A payment is counted before it is signed. It is
# taken back once it is known that it was not charged.

_SPENDING: Final = "spending"
_PAYMENTS: Final = "payments.json"
_DAY_SECONDS: Final = 24 * 3600


class DailyLimit:
    """Counts payments of all commands of this user."""

    def __init__(self, max_micro: int) -> None:
        """Raises: RefusedError where the folder cannot be made."""
        self._max_micro = max_micro
        self._folder = open_folder(_SPENDING)

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
            write_state(self._folder / _PAYMENTS, {"payments": [*recent, payment]})
        return now

    def take_back(self, number: int) -> None:
        """Count a payment no longer: it was not charged."""
        with locked(self._folder):
            others = [one for one in self._recent(time.time_ns()) if one["at"] != number]
            write_state(self._folder / _PAYMENTS, {"payments": others})

    def _recent(self, now: int) -> list[JsonObject]:
        payments = read_state(self._folder / _PAYMENTS).get("payments", [])
        return [one for one in payments if one["at"] > now - _DAY_SECONDS * 1_000_000_000]
