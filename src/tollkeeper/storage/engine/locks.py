"""Locks that a unit takes before it decides by what it reads, where units run side by side.

There is one order, in which every unit takes what it needs: gates, then what is counted together (the settlements of a
network, what is trusted at a gate and of a payer, a wallet's first login), then purchases with their credits by number.
An engine with one writer needs none of them and plays nothing in their place: then no rows come back. Else one does,
and what was read before has to be read again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tollkeeper.storage.engine.database import Statement, unit_of_work

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tollkeeper.core.x402.version1 import PaymentKey
    from tollkeeper.storage.engine.database import Row, Steps


@unit_of_work
def _nothing() -> Steps[list[Row]]:
    yield from ()
    return []


nothing: Final = _nothing()  # what an engine does in place of a statement that it has no need of


def gates_as_they_are(gate_ids: Iterable[int]) -> Statement:
    """None of these gates changes until the unit ends. Any number of units hold one so."""
    return Statement(
        "SELECT count(pg_advisory_xact_lock_shared(g.id)) AS locked FROM unnest(CAST(:ids AS BIGINT[])) AS g (id)",
        {"ids": sorted(set(gate_ids))},
        nothing,
    )


def gate_to_change(gate_id: int) -> Statement:
    """Nobody else changes the gate, and nobody spends, claims or grants at it."""
    return Statement("SELECT count(pg_advisory_xact_lock(:id)) AS locked", {"id": gate_id}, nothing)


def counted_together(*names: str) -> Statement:
    """No other unit that counts one of these does until this one ends, by names as `claims:base`."""
    sql = (
        "SELECT count(pg_advisory_xact_lock(hashtextextended(n.name, 0))) AS locked"
        " FROM unnest(CAST(:names AS TEXT[])) AS n (name)"
    )
    return Statement(sql, {"names": sorted(names)}, nothing)


def purchases_to_change(*ids: str) -> Statement:
    """No other unit changes these purchases, or what they have of credits."""
    sql = "SELECT lock_purchases(ARRAY(SELECT number FROM purchases WHERE id = ANY (CAST(:ids AS TEXT[])))) AS locked"
    return Statement(sql, {"ids": list(ids)}, nothing)


def purchases_to_spend(numbers: Iterable[int], ids: Iterable[str], payments: Sequence[PaymentKey]) -> Statement:
    """Lock purchases that are named in several ways, at once, as `purchases_to_change` does."""
    sql = """
        SELECT lock_purchases(CAST(:numbers AS BIGINT[]) || ARRAY(
            SELECT number FROM purchases WHERE id = ANY (CAST(:ids AS TEXT[]))
            UNION SELECT number FROM purchases WHERE (network, asset, payer, nonce) IN (SELECT * FROM unnest(
                CAST(:networks AS TEXT[]), CAST(:assets AS TEXT[]), CAST(:payers AS TEXT[]), CAST(:nonces AS TEXT[])
            ))
        )) AS locked
    """
    named = {
        "networks": [payment.network for payment in payments],
        "assets": [payment.asset for payment in payments],
        "payers": [payment.payer for payment in payments],
        "nonces": [payment.nonce for payment in payments],
    }
    return Statement(sql, {"numbers": [*numbers], "ids": [*ids], **named}, nothing)
