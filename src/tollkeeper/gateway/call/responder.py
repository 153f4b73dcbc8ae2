"""How a request ends: what is answered, and what is counted (contract 4.1, 4.5, 4.6, 4.7).

    the target answered            its answer with the receipt, whole, from disk, or as it comes
    the target or we failed        502 or 503 with the receipt (400, 413 or 500 where the body, or a fault of ours, was
                                   the reason); the credit consumed, or given back first
    no payment, no credits left    the 402
    refused                        `refuse`: its table says which body stands beside it
    nobody is there any more       what it waited for is given up, and a paid call counted

Each begins in a step of `flow`, in the relay or in the connection. Nothing but `Stage.OVER` is entered here: for an
answer in one piece when it is decided, for one in parts when its last is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.api import clock_ms, envelope, error_envelope, iso
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.framing import BodyEnd
from tollkeeper.core.paygates.fields import CreditBinding
from tollkeeper.core.paygates.statistics import CLIENT_GONE_STATUS
from tollkeeper.core.purchases import credit_token
from tollkeeper.core.x402.challenge import exhausted_body
from tollkeeper.edge.server.call import FAULT, JSON_LINE
from tollkeeper.gateway.call import credit_refusals, request_facts
from tollkeeper.gateway.call import headers as heads
from tollkeeper.gateway.call.credit_refusals import ExhaustedError
from tollkeeper.gateway.call.headers import CORS
from tollkeeper.gateway.call.shield import Charging
from tollkeeper.gateway.call.state import GIVEN_UP_CODES, GIVEN_UP_STATUS, Stage
from tollkeeper.gateway.open_gate import not_found
from tollkeeper.gateway.pages import is_for_person, page_of_refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tollkeeper.core.paygates.downloads import StoredFile
    from tollkeeper.edge.shared.heads import ResponseHead
    from tollkeeper.edge.target.spool import SpooledBody
    from tollkeeper.gateway.purchase.attempt import Waiter

_UNPAID_LINES: Final = JSON_LINE + CORS
_LOG = structlog.get_logger("tollkeeper.gateway.call.flow")


class Answering(Charging):
    """One request, as far as it is answered: its relay's `AnswerOwner`, and `PartsOwner` of a stream."""

    # The answer, with the receipt. Told by the relay, which holds a mebibyte of it in memory and the rest on disk. A
    # write from memory never waits: the transport holds what the caller does not take, and he gets no next answer made.
    # What is on disk, or streamed, waits for him: as long as `edge.server.timeouts` has it.

    @property
    def has_bought(self) -> bool:
        """Did this very request write the claim that its credit was taken of?"""
        return self.buyer is not None and self.buyer.claimed == self.purchase.id

    def _receipt(self, left: int) -> bytes:
        """Its lines, with so many credits left; the call that bought is told its credit token (contract 4.6)."""
        lines = heads.receipt_lines(self.purchase, left) + heads.receipt_line(self.presented, self.purchase)
        return lines + self._credit_token_line(self.purchase.id) if self.has_bought else lines

    async def hand_over(self, file: StoredFile) -> None:
        """A file PayGate forwards nothing: the answer is a link to what was bought (contract 4.8)."""
        body = envelope(await self.shared.files.bought(file, self.purchase.id, self.call.request_id))
        self.end(200)
        self.call.answer(200, JSON_LINE + self.receipts + CORS, body)

    def on_answer(self, head: ResponseHead, body: list[bytes] | SpooledBody, size_bytes: int) -> None:
        """The target answered: status, headers and body go on, filtered (contract 4.7)."""
        if self.stage is Stage.OVER:
            if not isinstance(body, list):
                body.close()
            return
        self.guard(self._answer, head, body, size_bytes)

    def _answer(self, head: ResponseHead, body: list[bytes] | SpooledBody, size_bytes: int) -> None:
        call, status = self.call, head.status
        try:
            answered, has_date = heads.answer_lines(self.call, self.opened, self.asked, head)
        except ApiError:
            if not isinstance(body, list):
                body.close()
            raise
        lines = answered + self.receipts
        if not isinstance(body, list):
            self.in_task(self._answer_from_disk(status, lines, body, has_date=has_date))
            return
        self.end(status)
        if head.framing.end is BodyEnd.NONE:  # to HEAD the target's own word; 204 and 304 state none
            length_bytes = None if status in (204, 304) else head.framing.declared_bytes
            call.answer(status, lines, length_bytes=length_bytes, has_date=has_date)
        else:
            call.answer_parts(status, lines, body, size_bytes, has_date=has_date)

    def on_stream(self, head: ResponseHead, parts: AsyncIterator[bytes]) -> None:
        """The target answers, and its gate passes that on as it comes."""
        if self.stage is not Stage.OVER:
            self.in_task(self._answer_as_it_comes(head, parts))

    async def _answer_as_it_comes(self, head: ResponseHead, parts: AsyncIterator[bytes]) -> None:
        """Reads as fast as the client does. Too late for a 502: what breaks off is cut, and the credit consumed."""
        answered, has_date = heads.answer_lines(self.call, self.opened, self.asked, head)
        self.call.start(head.status, answered + self.receipts, head.framing.declared_bytes, has_date=has_date)
        try:
            async for data in parts:
                await self.call.write(data)
        except ApiError as error:
            slug, request_id = self.opened.gate.slug, self.call.request_id
            _LOG.info("stream_cut", code=error.code.value, slug=slug, request_id=request_id)
            self.end(head.status, error.code, failed=True)
            self.call.leave_unfinished()
        else:
            self.end(head.status)
            self.call.end()

    async def _answer_from_disk(self, status: int, lines: bytes, body: SpooledBody, *, has_date: bool) -> None:
        """Reads as fast as the client does."""
        try:
            self.call.start(status, lines, body.size_bytes, has_date=has_date)
            async for data in body:
                await self.call.write(data)
        finally:
            body.close()
        self.end(status)
        self.call.end()

    def on_refusal(self, error: BaseException) -> None:
        """Our own answer with the receipt; the credit is consumed, or given back (`credit_refusals.is_given_back`)."""
        if self.stage is not Stage.OVER:
            self.guard(self._answer_failure, error)

    def _break_off(self, error: Exception) -> None:
        """No more of the request's body goes on: told by the relay, which knows whether the answer has begun."""
        if self.relay is None:
            self.on_refusal(error)
        else:
            self.relay.refuse(error)

    def broken(self, fault: BaseException) -> None:
        """Answer a fault: with the receipt where a credit was taken, else with the token of the claim that it wrote."""
        is_paid, lines = self.stage is Stage.FORWARDING or self.is_charged, b""
        if not (self.stage is Stage.OVER or self.call.response_started or self.is_returning):
            try:
                lines = self._lines_of_fault(is_paid=is_paid)
            except Exception:  # noqa: BLE001 - logged; then the caller is told without it
                _LOG.exception("receipt_not_made", request_id=self.call.request_id)
        if not lines:
            super().broken(fault)
        elif is_paid:
            self.receipts = lines
            if self.relay is not None:
                self.relay.close()
            self.call.guard(self._answer_failure, fault)
        else:
            self.give_up(500)
            self.call.guard(self.call.refuse, self._told(fault), CORS + lines)

    def _lines_of_fault(self, *, is_paid: bool) -> bytes:
        if is_paid and hasattr(self, "purchase"):
            return self.receipts or self._receipt(self.purchase.remaining)
        claimed = None if self.buyer is None else self.buyer.claimed
        return b"" if claimed is None else self._credit_token_line(claimed)

    def _told(self, error: BaseException) -> ApiError:
        """Return the refusal that a caller is told; log a fault of ours."""
        if isinstance(error, ApiError):
            return error
        _LOG.error("unhandled", exc_info=error, request_id=self.call.request_id)
        return ApiError(Code.INTERNAL_ERROR, FAULT)

    def _answer_failure(self, fault: BaseException) -> None:
        error = self._told(fault)
        event = "target_failed" if error.status == 502 else "call_failed"
        _LOG.info(event, code=error.code.value, slug=self.opened.gate.slug, request_id=self.call.request_id)
        if credit_refusals.is_given_back(self.opened.gate, error):
            self.give_back(error, lambda remaining, told: self._answer_charged(error, told, remaining))
        else:
            self._answer_charged(error, "the credit was used")

    def _answer_charged(self, error: ApiError, told: str, remaining: int | None = None) -> None:
        """Says what became of the credit, and how many remain where that is new."""
        if remaining is not None:
            self.receipts = self._receipt(remaining)
        self.end(error.status, error.code, failed=True)
        self.call.refuse(error.adding(told), self.receipts + CORS)

    def end(self, status: int, code: Code | None = None, *, failed: bool = False) -> None:
        """End the request."""
        self.enter(Stage.OVER)
        if self.ahead is not None:
            self.ahead.close()
        self.buyer = self.relay = self.ahead = None  # they name this call, and a circle waits for the collector
        bought = getattr(self, "purchase", None)  # a client may leave before it is known
        gate_id, purchase_id = self.opened.gate.id, bought and bought.id
        self.shared.traffic.ended(gate_id, self.call, status, purchase_id, code, failed=failed)

    # Leaving early: each step of `flow` may end here.

    def _challenge(self) -> None:
        if self.stage is Stage.ARRIVED:
            self._answer_challenge()
        else:
            self._by_gate_of_now(self._answer_challenge)

    def _by_gate_of_now(self, answer: Callable[[], None]) -> None:
        """A 402 behind a wait asks for what its gate asks for by now (contract 3.3); a task reads one that changed."""
        opened = self.opened
        if opened.is_deleted or self.shared.gates.kept(opened.gate.slug) is opened:
            answer()
        else:
            self.in_task(self._by_gate_read_anew(answer))

    async def _by_gate_read_anew(self, answer: Callable[[], None]) -> None:
        self.opened = await self.shared.gates.by_slug(self.opened.gate.slug)
        answer()

    def _answer_challenge(self) -> None:
        opened = self.opened
        if (unsold := opened.unsold()) is not None:
            raise unsold
        shown = request_facts.challenge_on(opened, self.call)
        profile = request_facts.profile_on(self.call, self.shared.profile)
        self.enter(Stage.OVER)
        self.shared.traffic.challenged(opened.gate.id, self.call)
        standing = self.shared.limit.challenged(self.call)
        lines = CORS + standing + heads.required_line(shown.header)
        if is_for_person(self.call):
            page = self.shared.pages.at(opened, self.call)
            self.call.answer(402, page.lines + lines, page.body)
        else:
            self.call.answer(402, JSON_LINE + lines, shown.body(profile, iso(clock_ms())))

    def exhausted(self, spent: ExhaustedError) -> None:
        """Answer that the credits are used up."""
        self._by_gate_of_now(lambda: self._answer_exhausted(spent))

    def _answer_exhausted(self, spent: ExhaustedError) -> None:
        opened = self.opened
        if (unsold := opened.unsold()) is not None:  # as if unpaid
            self._answer_refusal(unsold, self.shared.limit.challenged(self.call))
            return
        self.enter(Stage.OVER)
        detail = credit_refusals.exhausted(spent).body()
        profile = request_facts.profile_on(self.call, self.shared.profile)
        shown = request_facts.challenge_beside(opened, self.call)
        body = exhausted_body(shown, detail, profile, iso(clock_ms()))
        self.shared.traffic.challenged(opened.gate.id, self.call)
        standing = self.shared.limit.challenged(self.call)
        self.call.answer(402, _UNPAID_LINES + standing + heads.required_line(shown.header), body)

    def refuse(self, error: ApiError) -> None:
        """The refusal, as contract 4.5 has it; `error.at_gate` gives a refused payment its status at a gate.

        it is paid for                `broken`
        nothing shown yet             as it is; 404 where the gate is deleted, but for a 401, a 429 and a 503
        the gate is deleted           404, but for a 503
        its outcome is not known yet  503, with the credit token of the purchase that was claimed
        a refused payment: 402        the requirements stand beside it, as they are by now, so that a client can pay
                                      another (404 where nothing is sold, 503 while nothing can be paid for); where
                                      the token counts, with that of the claim, which its next try needs
        anything else                 as it is
        """
        if self.stage is Stage.FORWARDING:
            self.broken(error)
            return
        buyer = self.buyer
        if buyer is None:
            opened = getattr(self, "opened", None)
            is_hidden = opened is not None and opened.is_deleted and error.status not in {401, 429, 503}
            self._answer_refusal(not_found() if is_hidden else error, self.shared.limit.refused(self.call, error))
            return
        error.at_gate()
        if error.status == 402:
            self._by_gate_of_now(lambda: self._answer_refused(error, buyer))
        else:
            self._answer_refused(error, buyer)

    def _answer_refused(self, error: ApiError, buyer: Waiter) -> None:
        opened, standing = self.opened, self.shared.limit.refused(self.call, error)
        lines = standing + self._token_of_claim(buyer, error)
        if error.status == 402 and (unsold := opened.unsold()) is not None:
            error = unsold
        if error.status == 402:
            self.enter(Stage.OVER)
            self.shared.traffic.refused(opened.gate.id, self.call, error)
            shown = request_facts.challenge_beside(opened, self.call)
            body = error_envelope(error, self.call.request_id, shown.siblings)
            self.call.refuse(error, CORS + lines + heads.required_line(shown.header_beside(error)), body)
        else:
            is_hidden = opened.is_deleted and error.status != 503
            self._answer_refusal(not_found() if is_hidden else error, lines)

    def _token_of_claim(self, buyer: Waiter, error: ApiError) -> bytes:
        """Its line, where the payment that it claimed must be presented again, and may need it."""
        may_try_again = error.status == 402 and self.opened.gate.credit_binding is CreditBinding.TOKEN
        if buyer.claimed is None or not (may_try_again or error.status == 503):
            return b""
        return self._credit_token_line(buyer.claimed)

    def _answer_refusal(self, error: ApiError, lines: bytes = b"") -> None:
        self.enter(Stage.OVER)
        opened = getattr(self, "opened", None)  # of an unknown slug there is none
        if opened is not None:
            self.shared.traffic.refused(opened.gate.id, self.call, error)
        if error.code is Code.SETTLEMENT_PENDING:
            lines += heads.pending_line(self.presented, (error.details or {}).get("transaction", ""))
        if is_for_person(self.call):
            page = page_of_refusal(self.shared.pages, opened, error, self.call)
            self.call.refuse(error, CORS + lines, page.body, page.lines)
        else:
            self.call.refuse(error, CORS + lines)

    def _credit_token_line(self, purchase_id: str) -> bytes:
        return b"x-credit-token: %b\r\n" % credit_token(self.shared.token_keys[0], purchase_id).encode()

    def _client_gone(self) -> None:
        """The client left: what it waited for is given up; a purchase under way goes on without it."""
        if self.stage is Stage.OVER:  # it did not leave: the answer was cut here
            return
        self.give_up(CLIENT_GONE_STATUS)
        if self.task is not None:
            self.task.cancel()
        _LOG.info("client_gone", request_id=self.call.request_id)

    def cut_short(self) -> None:
        """Cut the request short; so ends what begins behind such a request, too.

        A 503, unless an answer has begun: what was charged for it is given back (contract 4.5).
        """
        stopped = ApiError(
            Code.UNAVAILABLE, "the gateway is stopping; send the same request again, it is not charged twice"
        )
        token = b"" if self.buyer is None else self._token_of_claim(self.buyer, stopped)
        self.give_up(GIVEN_UP_STATUS)
        if self.call.response_started:
            self.call.abort()
        else:
            self.call.keep_alive = False
            self.call.guard(self.call.refuse, stopped, CORS + token)

    def give_up(self, status: int) -> None:
        """Give the request up."""
        if self.relay is not None:
            self.relay.close()
        is_paid = self.stage is Stage.FORWARDING or (self.is_charged and self.stage is not Stage.OVER)
        if is_paid and self.is_cut and not (self.call.response_started or self.is_returning):
            self.give_back_unanswered()
        elif is_paid and not self.is_returning:
            self.end(status, GIVEN_UP_CODES.get(status), failed=status != CLIENT_GONE_STATUS)
        self.enter(Stage.OVER)
