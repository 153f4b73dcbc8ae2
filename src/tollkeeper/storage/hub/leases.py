"""Leases of hub processes as rows: which are alive, and what each of them alone may do (security F20).

A process says again and again that it is alive. The settlement rows and named leases that it holds may be taken over
once it does not. The token of a lease, like the fence of a row, grows with each change of hands. Every write of a
holder names the token that it was given, so that a holder who comes back too late writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.storage.engine.database import load_queries, unit_of_work

if TYPE_CHECKING:
    from tollkeeper.storage.engine.database import Steps

_QUERIES: Final = load_queries("leases.sql")


@dataclass(frozen=True, slots=True)
class Lease:
    """Something that `holder` does alone, as long as nobody has a larger token."""

    name: str
    holder: str
    token: int


class LeaseLost(Exception):  # noqa: N818 - undoes a unit, is no fault
    """Another process does this now; the unit was undone."""


@unit_of_work
def join(process_id: str, expires_ms: int, now_ms: int, *, is_alone: bool) -> Steps[None]:
    """Say that a process is alive until then. `is_alone`: whatever other process is written down has ended."""
    yield _QUERIES.forget_processes(now_ms=now_ms, are_all_dead=int(is_alone))
    yield _QUERIES.join_process(id=process_id, expires_ms=expires_ms)


@unit_of_work
def renew(process_id: str, expires_ms: int, now_ms: int) -> Steps[bool]:
    """Say it again; False where that came too late, so that what the process held may be another's.

    What others said before the clock was put back ends with what this one says now.
    """
    yield _QUERIES.correct_processes(expires_ms=expires_ms)
    return bool((yield _QUERIES.renew_process(id=process_id, expires_ms=expires_ms, now_ms=now_ms)))


@unit_of_work
def leave(process_id: str) -> Steps[None]:
    """Say that a process has ended: what it held is free at once."""
    yield _QUERIES.leave_process(id=process_id)


@unit_of_work
def take_lease(name: str, holder: str, now_ms: int) -> Steps[Lease | None]:
    """The lease, taken or held already; None where another process that is alive has it."""
    yield _QUERIES.take_lease(name=name, holder=holder, now_ms=now_ms)
    (row,) = yield _QUERIES.read_lease(name=name)
    return Lease(name, holder, row["token"]) if row["holder"] == holder else None


@unit_of_work
def hold(lease: Lease) -> Steps[None]:
    """Bind the rest of a unit to the lease. Raises: LeaseLost."""
    held = yield _QUERIES.hold_lease(name=lease.name, holder=lease.holder, token=lease.token)
    if not held:
        raise LeaseLost
