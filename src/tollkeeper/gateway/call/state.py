"""How a paid request goes from step to step: its stages, who calls its steps, and what becomes of what they raise.

`Stage` says what a request waits for and `NEXT` which stage may follow; the steps themselves are `flow`. A step is
called by the parser, the connection, the ledger, the relay or what took or gave back a credit, or it runs in a task of
the request, one at a time; whatever it raises is answered and never reaches who called it.
Decides nothing about payments.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.gateway.call.credit_refusals import ExhaustedError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tollkeeper.core.x402.presented_payment import PresentedPayment
    from tollkeeper.edge.server.call import InboundCall
    from tollkeeper.edge.target.relay import Relay
    from tollkeeper.gateway.call.context import Shared
    from tollkeeper.gateway.call.request_facts import RequestFacts
    from tollkeeper.gateway.call.target_signature import BodyAhead
    from tollkeeper.gateway.open_gate import OpenGate
    from tollkeeper.gateway.purchase.attempt import Waiter
    from tollkeeper.storage.ledger.purchase_rows import Purchase

GIVEN_UP_STATUS: Final = 503  # recorded for a paid call that had no answer when the process stopped
GIVEN_UP_CODES: Final = {500: Code.INTERNAL_ERROR, GIVEN_UP_STATUS: Code.UNAVAILABLE}  # of calls given up on our side


class Stage(Enum):
    """Stages of a request, by what it waits for."""

    ARRIVED = "nothing yet; a gate that is not in memory is read in a task"
    LOGIN = (
        "the session of its bearer, where the gate asks who calls or may serve by it; a gate that changed; in a task"
    )
    SPENDING = "the ledger's commit; no task"
    BUYING = (
        "a purchase, a decision elsewhere, a credit by token or bearer, a file's store, a gate that changed (and a"
        " login); in a task"
    )
    FORWARDING = (
        "a body to sign, the target, a credit's return, a slow caller; a task to connect, for an answer from disk or as"
        " it comes"
    )
    OVER = (
        "nothing: its answer is decided, or its client is gone; a credit's return may still be under way, with its end"
    )

    __hash__ = object.__hash__  # an enum hashes its name, in Python code; its members are what they are


NEXT: Final = {
    Stage.ARRIVED: {Stage.LOGIN, Stage.SPENDING, Stage.BUYING, Stage.OVER},
    Stage.LOGIN: {Stage.SPENDING, Stage.BUYING, Stage.OVER},
    Stage.SPENDING: {Stage.BUYING, Stage.FORWARDING, Stage.OVER},
    Stage.BUYING: {Stage.FORWARDING, Stage.OVER},
    Stage.FORWARDING: {Stage.OVER},
    Stage.OVER: {Stage.OVER},
}


class Steps(ABC):
    """One request on its way. Its whole state is this table; a line without a value is not there before its step.

    What its attempt to buy knows of it is its `purchase.service.Waiter`, how far its answer is says its `call`.
    """

    shared: Shared
    call: InboundCall  # its head, its body and its answer, on its connection
    asked: RequestFacts  # what its head says
    stage = Stage.ARRIVED
    task: asyncio.Task[None] | None = None  # the last one of its own
    opened: OpenGate  # from its slug on: the gate as it was last seen
    presented: PresentedPayment | None = None  # its payment, once that is read
    is_proof = False  # is its credit spent by that payment, which is never settled (`payer_proofs`)?
    wallet: str | None = None  # its bearer's, where one was asked for or may count
    buyer: Waiter | None = None  # from its payment or token on: what it wants of a purchase that several may wait for
    purchase: Purchase  # from its credit on: the one whose credit it is
    receipts = b""  # from forwarding on: the header lines of its receipt
    relay: Relay | BodyAhead | None = None  # from forwarding on: reads what is to be signed, then asks the target
    ahead: BodyAhead | None = None  # from forwarding on: holds what was read to be signed, until its target takes it
    is_charged = False  # a credit was taken, which its stage does not show: it counts as a call however it ends
    is_returning = False  # its credit is being given back, and its end is noted behind that
    is_cut = False  # the process stopped before it was answered, and its client did not leave

    def enter(self, stage: Stage) -> None:
        """Goes on to `stage`. Raises RuntimeError where the table has no such step."""
        if stage not in NEXT[self.stage]:
            msg = f"a request cannot go from {self.stage.name} to {stage.name}"
            raise RuntimeError(msg)
        self.stage = stage

    def guard(self, step: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401 - the step's own
        """Takes a step; what it raises is answered, and never reaches parser, ledger or relay."""
        try:
            step(*arguments)
        except ExhaustedError as spent:
            self.call.guard(self.exhausted, spent)
        except ApiError as error:
            self.call.guard(self.refuse, error)
        except Exception as fault:  # noqa: BLE001 - whatever it was, this caller must not wait for ever
            self.broken(fault)

    def broken(self, fault: BaseException) -> None:
        """Answers a fault of ours."""
        self.give_up(500)
        self.call.fail(fault)

    def in_task(self, steps: Coroutine[Any, Any, None]) -> None:
        """Takes steps that wait."""
        self.task = task = asyncio.get_running_loop().create_task(self._guarded(steps))
        self.shared.tasks.add(task)
        task.add_done_callback(self.shared.tasks.discard)
        task.add_done_callback(lambda done: self._done(done, steps))

    async def _guarded(self, steps: Coroutine[Any, Any, None]) -> None:
        try:
            await steps
        except asyncio.CancelledError:
            self._cancelled()  # before whoever it waited for is told, too
            raise
        except BaseException as fault:  # noqa: BLE001 - taken apart by the one who answers
            self.guard(_raise, fault)

    def _done(self, task: asyncio.Task[None], steps: Coroutine[Any, Any, None]) -> None:
        steps.close()
        if self.task is task:  # which names what it was cancelled in, and so this call and what it was to be answered
            self.task = None
        if task.cancelled():  # it may be before it began
            self._cancelled()

    def _cancelled(self) -> None:
        if self.stage is not Stage.OVER:
            self.is_cut = True
            self.cut_short()

    @abstractmethod
    def exhausted(self, spent: ExhaustedError) -> None:
        """Answers a payment whose credits are used up."""

    @abstractmethod
    def refuse(self, error: ApiError) -> None:
        """Answers a refusal."""

    @abstractmethod
    def cut_short(self) -> None:
        """Ends a request that the process's stop cuts: its task was cancelled, or it has not begun."""

    @abstractmethod
    def give_up(self, status: int) -> None:
        """Ends the request without an answer: lets go of the target, and counts a paid call under this status."""


def _raise(fault: BaseException) -> NoReturn:
    raise fault
