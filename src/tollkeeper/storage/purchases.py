"""The store of purchases and the credit ledger: claim, grant, spend, fail (contract 4.3; architecture 2).

Each race is decided by one conditional statement. A credit is spent in one place, `_spend`, whatever bought it; the
spend, its ledger entry and its call row are one commit, before the first byte goes to the target.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.core.limits import PAYMENT_ATTEMPTS_MAX
from tollkeeper.core.purchases import Claim, PurchaseState, Spend, Terms
from tollkeeper.core.sealing import NONCE_SIZE_BYTES, KeyRing, SealError, place, seal, unseal
from tollkeeper.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.wire import PaymentKey
    from tollkeeper.storage.database import Database, Row, Unit

_Q = load_queries("gateway.sql")


@dataclass(frozen=True, slots=True)
class Purchase:
    """A purchase row as the gateway reads it. Amounts in micro-units, `value_micro` what was really paid."""

    id: str
    network: str
    payer: str
    nonce: str
    asset: str
    gate_id: int
    state: PurchaseState
    attempt: int
    credits: int
    granted: int
    remaining: int
    token_used: bool
    assume_valid: bool
    transaction_hash: str | None
    failure: str | None
    value_micro: int
    header_hash: bytes
    claimed_ms: int
    attempt_ms: int


@dataclass(frozen=True, slots=True)
class SpendRequest:
    """One call's wish for a credit at a gate version. `header` is the shown header's hash, None for a credit token."""

    gate_id: int
    gate_version: int
    header: bytes | None
    call_id: str


@dataclass(frozen=True, slots=True)
class SpendResult:
    """What came of it, and the purchase as it stands afterwards (None when the payment was never seen)."""

    outcome: Spend
    purchase: Purchase | None = None


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """What came of a claim; `purchase` is the winner's own."""

    outcome: Claim
    purchase: Purchase | None = None


@dataclass(frozen=True, slots=True)
class Exposure:
    """Trusted but unconfirmed purchases: how many, and what they paid."""

    purchases: int
    value_micro: int

    def allows(self, value_micro: int, cap: Exposure, factor: int = 1) -> bool:
        """May one more purchase of this value be trusted under `factor` times `cap`?"""
        return self.purchases < cap.purchases * factor and self.value_micro + value_micro <= cap.value_micro * factor


# A gate has many payers: all of them together may owe it this many times what one payer may.
GATE_EXPOSURE_FACTOR: Final = 10


def _purchase(row: Row, **changed: Any) -> Purchase:  # noqa: ANN401 - column values
    row = {**row, **changed}
    return Purchase(
        id=row["id"],
        network=row["network"],
        payer=row["payer"],
        nonce=row["nonce"],
        asset=row["asset"],
        gate_id=row["gate_id"],
        state=PurchaseState(row["state"]),
        attempt=row["attempt"],
        credits=row["credits"],
        granted=row["granted"],
        remaining=row["remaining"],
        token_used=bool(row["token_used"]),
        assume_valid=bool(row["assume_valid"]),
        transaction_hash=row["transaction_hash"],
        failure=row["failure"],
        value_micro=int(row["value_micro"]),
        header_hash=row["header_hash"],
        claimed_ms=row["claimed_ms"],
        attempt_ms=row["attempt_ms"],
    )


_WITHOUT_CREDIT = {
    PurchaseState.CLAIMED: Spend.IN_FLIGHT,
    PurchaseState.PARKED: Spend.PARKED,
    PurchaseState.FAILED: Spend.FAILED,
    PurchaseState.VOID: Spend.EXHAUSTED,
    PurchaseState.LIVE: Spend.EXHAUSTED,
}


class Purchases:
    """Purchases and credits in one database."""

    def __init__(self, database: Database, ring: KeyRing, random_bytes: Callable[[int], bytes]) -> None:
        self._database = database
        self._ring = ring
        self._random = random_bytes

    async def spend(self, key: PaymentKey, wish: SpendRequest, now_ms: int) -> SpendResult:
        """Spends one credit that this payment holds at the gate, if there is one and the proof counts."""
        return await self._database.run(self._spend_by_payment(key, wish, now_ms))

    async def spend_token(self, purchase_id: str, wish: SpendRequest, now_ms: int) -> SpendResult:
        """Spends one credit of the purchase whose credit token was shown; from then on the header does not count."""
        return await self._database.run(self._spend_by_id(purchase_id, wish, now_ms))

    def _spend_by_payment(self, key: PaymentKey, wish: SpendRequest, now_ms: int) -> Unit[SpendResult]:
        rows = yield _Q.purchase_by_payment(network=key.network, asset=key.asset, payer=key.payer, nonce=key.nonce)
        return (yield from self._spend_row(rows, wish, now_ms))

    def _spend_by_id(self, purchase_id: str, wish: SpendRequest, now_ms: int) -> Unit[SpendResult]:
        rows = yield _Q.purchase_by_id(id=purchase_id)
        return (yield from self._spend_row(rows, wish, now_ms))

    def _spend_row(self, rows: list[Row], wish: SpendRequest, now_ms: int) -> Unit[SpendResult]:
        if not rows:
            return SpendResult(Spend.UNKNOWN)
        purchase = _purchase(rows[0])
        if purchase.gate_id != wish.gate_id:
            return SpendResult(Spend.FOREIGN, purchase)
        if purchase.state is not PurchaseState.LIVE or purchase.remaining == 0:
            return SpendResult(_WITHOUT_CREDIT[purchase.state], purchase)
        if wish.header is not None and (
            purchase.token_used or not hmac.compare_digest(wish.header, purchase.header_hash)
        ):
            return SpendResult(Spend.WITHHELD, purchase)
        return (yield from self._spend_at_gate(rows[0], wish, now_ms))

    def _spend_at_gate(self, row: Row, wish: SpendRequest, now_ms: int) -> Unit[SpendResult]:
        standing = yield _Q.gate_standing(gate_id=wish.gate_id)
        if standing[0]["deleted_ms"] is not None:
            return (yield from self._spend_after_delete(row, wish, now_ms))
        if standing[0]["version"] != wish.gate_version:
            return SpendResult(Spend.STALE, _purchase(row))
        return (yield from self._spend(row, wish, now_ms))

    def _spend_after_delete(self, row: Row, wish: SpendRequest, now_ms: int) -> Unit[SpendResult]:
        """Claimed before the delete and granted after it: one call is served, the rest is void (contract 2)."""
        result = yield from self._spend(row, wish, now_ms)
        yield _Q.void_purchase(id=row["id"], failure="gate_deleted", now_ms=now_ms)
        return result

    def _spend(self, row: Row, wish: SpendRequest, now_ms: int) -> Unit[SpendResult]:
        token_used = int(bool(row["token_used"]) or wish.header is None)
        spent = yield _Q.spend_credit(id=row["id"], token_used=token_used, now_ms=now_ms)
        if not spent:
            return SpendResult(Spend.EXHAUSTED, _purchase(row, remaining=0))
        yield _Q.insert_entry(cause=wish.call_id, reason="spend", purchase_id=row["id"], delta=-1, now_ms=now_ms)
        yield _Q.insert_call(id=wish.call_id, purchase_id=row["id"], gate_id=wish.gate_id, now_ms=now_ms)
        return SpendResult(Spend.SPENT, _purchase(row, remaining=spent[0]["remaining"], token_used=token_used))

    async def claim(
        self,
        key: PaymentKey,
        terms: Terms,
        *,
        purchase_id: str,
        value_micro: int,
        header: bytes,
        trust: Exposure | None,
        request_of: Callable[[Purchase], bytes],
        now_ms: int,
    ) -> ClaimResult:
        """Makes the payment ours to settle, with the terms and the gate's version in one commit.

        `trust` is the cap under which the settlement may be trusted (the winner's `assume_valid` says whether it is),
        None where it may not. `request_of` gives the winner's exact settle request, which is kept sealed with the
        claim, so that the same bytes can be sent again after a crash.
        """
        columns: dict[str, Any] = {
            "gate_version": terms.gate_version,
            "price_micro": terms.price_micro,
            "credits": terms.credits,
            "header_hash": header,
            "now_ms": now_ms,
        }
        columns["value_micro"] = str(value_micro)
        unit = self._claim(key, terms, purchase_id, trust, request_of, columns)
        return await self._database.run(unit)

    def _claim(
        self,
        key: PaymentKey,
        terms: Terms,
        purchase_id: str,
        trust: Exposure | None,
        request_of: Callable[[Purchase], bytes],
        columns: dict[str, Any],
    ) -> Unit[ClaimResult]:
        standing = yield _Q.gate_standing(gate_id=terms.gate_id)
        gate = standing[0]
        if gate["version"] != terms.gate_version or gate["deleted_ms"] is not None or not gate["is_enabled"]:
            return ClaimResult(Claim.STALE)
        identity = {"network": key.network, "asset": key.asset, "payer": key.payer, "nonce": key.nonce}
        value_micro = columns.pop("value_micro")
        is_trusted = trust is not None and (yield from _may_trust(key.payer, terms.gate_id, int(value_micro), trust))
        columns["assume_valid"] = int(is_trusted)
        pay_to = terms.pay_to.encode()
        won = yield _Q.claim_payment(
            id=purchase_id,
            **identity,
            gate_id=terms.gate_id,
            value_micro=value_micro,
            pay_to=self._seal(purchase_id, "pay_to", pay_to),
            **columns,
        )
        if not won:
            rows = yield _Q.purchase_by_payment(**identity)
            found = _purchase(rows[0])
            if found.gate_id != terms.gate_id or found.state is not PurchaseState.FAILED:
                return ClaimResult(Claim.TAKEN, found)
            won = yield _Q.claim_again(
                id=found.id,
                attempt=found.attempt,
                attempts_max=PAYMENT_ATTEMPTS_MAX,
                pay_to=self._seal(found.id, "pay_to", pay_to),
                **columns,
            )
            if not won:
                return ClaimResult(Claim.ATTEMPTS_EXHAUSTED, found)
        rows = yield _Q.purchase_by_payment(**identity)
        purchase = _purchase(rows[0])
        yield _Q.keep_request(id=purchase.id, request=self._seal(purchase.id, "request", request_of(purchase)))
        return ClaimResult(Claim.WON, purchase)

    def _seal(self, purchase_id: str, column: str, plaintext: bytes) -> bytes:
        where = place("purchases", purchase_id, column)
        return seal(self._ring, plaintext, where, self._random(NONCE_SIZE_BYTES))

    async def grant(
        self, purchase: Purchase, transaction_hash: str, *, confirmed: bool, wish: SpendRequest | None, now_ms: int
    ) -> SpendResult:
        """Grants the credits of a settled claim, once, and spends the first for `wish` in the same commit.

        A claim that was granted or failed meanwhile is left as it is (the outcome says so).
        """
        unit = self._grant(purchase, transaction_hash, confirmed, wish, now_ms)
        return await self._database.run(unit)

    def _grant(
        self,
        purchase: Purchase,
        transaction_hash: str,
        confirmed: bool,  # noqa: FBT001 - private; its one caller names it
        wish: SpendRequest | None,
        now_ms: int,
    ) -> Unit[SpendResult]:
        granted = yield _Q.grant_credits(
            id=purchase.id,
            attempt=purchase.attempt,
            transaction_hash=transaction_hash,
            confirmed=int(confirmed),
            now_ms=now_ms,
        )
        rows = yield _Q.purchase_by_id(id=purchase.id)
        if not granted:
            return SpendResult(Spend.STALE, _purchase(rows[0]))
        gate_id = granted[0]["gate_id"]
        yield _Q.insert_entry(
            cause=purchase.id, reason="grant", purchase_id=purchase.id, delta=granted[0]["granted"], now_ms=now_ms
        )
        yield _Q.count_purchase(gate_id=gate_id, revenue_micro=int(granted[0]["value_micro"]))
        result = SpendResult(Spend.STALE, _purchase(rows[0]))
        if wish is not None:
            result = yield from self._spend(rows[0], wish, now_ms)
        standing = yield _Q.gate_standing(gate_id=gate_id)
        if standing[0]["deleted_ms"] is not None and wish is not None:
            yield _Q.void_purchase(id=purchase.id, failure="gate_deleted", now_ms=now_ms)
        return result

    async def fail(self, purchase: Purchase, failure: str, transaction_hash: str | None, now_ms: int) -> bool:
        """Records that this attempt is proved not settled; False when it was decided otherwise meanwhile."""
        statement = _Q.fail_purchase(
            id=purchase.id,
            attempt=purchase.attempt,
            failure=failure,
            transaction_hash=transaction_hash,
            now_ms=now_ms,
        )
        return bool(await self._database.run(_rows(statement)))

    async def park(self, purchase: Purchase, failure: str, now_ms: int) -> None:
        """Leaves a claim to the operator."""
        statement = _Q.park_purchase(id=purchase.id, attempt=purchase.attempt, failure=failure, now_ms=now_ms)
        await self._database.run(_rows(statement))

    async def confirm(self, purchase: Purchase, now_ms: int) -> None:
        """Records that a trusted settlement proved true."""
        await self._database.run(_rows(_Q.confirm_purchase(id=purchase.id, now_ms=now_ms)))

    async def void(self, purchase: Purchase, failure: str, now_ms: int) -> None:
        """Voids the credits not yet used of a trusted settlement that proved failed; its revenue was none."""
        await self._database.run(_void(purchase.id, failure, now_ms))

    async def end_calls(self, ended: dict[str, int], now_ms: int) -> None:
        """Records how calls ended (call id -> status), in one transaction; off the hot path."""
        await self._database.run(_end_calls(ended, now_ms))

    async def interrupt_calls(self, now_ms: int) -> int:
        """At start: calls that a dead process left dispatched stay charged and are marked; returns how many."""
        return len(await self._database.run(_rows(_Q.interrupt_calls(now_ms=now_ms))))

    async def by_id(self, purchase_id: str) -> Purchase | None:
        """One purchase."""
        rows = await self._database.read(_Q.purchase_by_id(id=purchase_id))
        return _purchase(rows[0]) if rows else None

    async def by_payment(self, key: PaymentKey) -> Purchase | None:
        """The purchase of a payment."""
        statement = _Q.purchase_by_payment(network=key.network, asset=key.asset, payer=key.payer, nonce=key.nonce)
        rows = await self._database.read(statement)
        return _purchase(rows[0]) if rows else None

    async def of_payer(self, payer: str, limit: int) -> list[tuple[Purchase, str]]:
        """Live purchases of a wallet with their gates' slugs, oldest first."""
        rows = await self._database.read(_Q.purchases_of_payer(payer=payer, limit=limit))
        return [(_purchase(row), row["slug"]) for row in rows]

    async def slug_of(self, gate_id: int) -> str:
        """The slug of a gate, deleted or not."""
        slug: str = (await self._database.read(_Q.slug_of_gate(id=gate_id)))[0]["slug"]
        return slug

    async def in_flight(self, limit: int) -> list[tuple[Purchase, bytes]]:
        """Claims without an outcome, oldest first, each with its settle request as it was first sent.

        A request that does not open (its key is gone) is empty: the claim can then only be parked.
        """
        rows = await self._database.read(_Q.claims_in_flight(limit=limit))
        return [(_purchase(row), self._request(row)) for row in rows]

    def _request(self, row: Row) -> bytes:
        try:
            return unseal(self._ring, row["request"], place("purchases", row["id"], "request"))
        except SealError:
            return b""

    async def unconfirmed(self, limit: int) -> list[Purchase]:
        """Trusted purchases whose settlement is not known to be final, oldest first."""
        return [_purchase(row) for row in await self._database.read(_Q.unconfirmed_purchases(limit=limit))]


def _may_trust(payer: str, gate_id: int, value_micro: int, cap: Exposure) -> Unit[bool]:
    rows = yield _Q.exposure_of_payer(payer=payer)
    if not Exposure(**rows[0]).allows(value_micro, cap):
        return False
    rows = yield _Q.exposure_of_gate(gate_id=gate_id)
    return Exposure(**rows[0]).allows(value_micro, cap, GATE_EXPOSURE_FACTOR)


def _void(purchase_id: str, failure: str, now_ms: int) -> Unit[None]:
    rows = yield _Q.void_purchase(id=purchase_id, failure=failure, now_ms=now_ms)
    for row in rows:
        yield _Q.uncount_revenue(gate_id=row["gate_id"], revenue_micro=int(row["value_micro"]))


def _rows(statement: Any) -> Unit[list[Row]]:  # noqa: ANN401 - a Statement
    return (yield statement)


def _end_calls(ended: dict[str, int], now_ms: int) -> Unit[None]:
    for call_id, status in ended.items():
        yield _Q.end_call(id=call_id, status=status, now_ms=now_ms)
