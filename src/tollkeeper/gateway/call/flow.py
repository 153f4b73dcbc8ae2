"""The paid call, top to bottom, in the order of contract 4.2 (docs/specification.md; specification 1.2, 1.3, 3).

    1. slug (404; a deleted gate is there for whoever shows what was claimed at it)
    2. CORS preflight; method (405) -> rate limit (429) -> size (413) -> can it be forwarded (400, 404) -> bearer (401)
    3. proof of payment (402; 404, 503: nothing sold, or not now; 400: other network) -> decode, signature, payer (403)
    4. spend a held credit (`credit`), by its payment, its token, its payer's bearer or a payer's proof; else wait, or
       refuse (402 used up, 403 not by this proof, 503 unknown), or, where nothing is held,
    5. buy: a failed payment's next try (403) -> a wallet's payer (401, 403) -> enabled (404), network (402, 503) ->
       `purchase.service`: recipient, price, time -> verify -> claim -> settle -> grant and spend
    6. forward (`forwarding`), and pass the answer on (`responder`); of a file, hand a link over

`serve` is the whole way, `_end` each other end of it: what is answered. What becomes of the credit is `credit.FATES`.
Every rule of contract 4: docs/architecture.md 5.

One coroutine a call, driven by hand (`driver`): a 402 is answered within the parser's own call, and a call on a held
credit waits twice, for the ledger's commit and for the target. Whatever waits by asyncio's means is a task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.paygates.fields import CreditBinding
from tollkeeper.core.paygates.statistics import CLIENT_GONE_STATUS
from tollkeeper.gateway.call import headers, request_facts, responder
from tollkeeper.gateway.call.credit import Credit, CreditState, Ending, ending_of
from tollkeeper.gateway.call.credit_refusals import ExhaustedError
from tollkeeper.gateway.call.driver import Cut, CutShortError
from tollkeeper.gateway.call.forwarding import Forwarding
from tollkeeper.gateway.open_gate import not_found

if TYPE_CHECKING:
    from tollkeeper.core.paygates.downloads import StoredFile
    from tollkeeper.gateway.call.state import PaidCall
    from tollkeeper.gateway.open_gate import OpenGate
    from tollkeeper.storage.ledger.purchase_rows import Purchase

GIVEN_UP_STATUS: Final = 503  # recorded for a paid call that had no whole answer when the process stopped
_ENDINGS_MAX: Final = 3  # a refusal, what is found while it is made, and a fault of that
_LOG = structlog.get_logger("tollkeeper.gateway.call.flow")


async def serve(call: PaidCall) -> None:
    """Serve one call at a PayGate. Cut where its client leaves or the process stops (`driver`)."""
    http, context = call.http, call.context
    credit = Credit(call)
    try:
        if context.is_stopping:
            call.driver.cut_short(Cut.STOPPED)
            call.driver.check()
        gate = context.gates.kept(call.facts.slug)  # 1
        if gate is None:
            gate = await call.driver.in_task(call.open_gate())  # 404
        call.gate = gate
        if http.method == "OPTIONS" and request_facts.is_preflight(http):  # 2
            responder.preflight(call, gate)
            return
        request_facts.check_request(context, http, call.facts, gate)  # 405, 429, 413, 400, 404
        if call.is_login_wanted:
            await call.driver.in_task(call.log_in())  # 401
        shows_proof = request_facts.shows_proof(http.head)
        purchase = await credit.acquire() if shows_proof or gate.is_of_wallets else None  # 3, 4, 5
        if purchase is None:
            await _challenge(call)  # 402
            return
        _count_as_paid(call, credit)
        if (file := call.gate.gate.file) is not None:
            await _hand_over(call, credit, purchase, file)
        else:
            await _forward(call, credit, purchase)  # 6
    except (Exception, CutShortError) as fault:  # noqa: BLE001 - whatever it was, this caller must not wait for ever
        await _end(call, credit, fault)


async def _challenge(call: PaidCall) -> None:
    """Ask for a payment. Raises: NOT_FOUND where nothing is sold, UNAVAILABLE where it cannot be paid for now."""
    gate = await call.newest_gate()
    if (unsold := gate.unsold()) is not None:
        raise unsold
    responder.challenge(call, gate)


def _count_as_paid(call: PaidCall, credit: Credit) -> None:
    """Take the call's 402 back from the rate limit, and remember the proof that was good."""
    limit = call.context.limit
    if not call.is_proof:
        limit.paid(call.http, credit.proofs)
    if call.has_bought or call.is_proof:
        limit.bought(call.http)


async def _hand_over(call: PaidCall, credit: Credit, purchase: Purchase, file: StoredFile) -> None:
    """Answer with a link to what was bought: a file PayGate forwards nothing (contract 4.8)."""
    link = await call.driver.in_task(call.context.files.bought(file, purchase.id, call.http.request_id))
    credit.serve(200)
    responder.link(call, link)


async def _forward(call: PaidCall, credit: Credit, purchase: Purchase) -> None:
    """Have the target answer, and pass that on, filtered (contract 4.7): from memory, from disk, or as it comes."""
    http, forwarding = call.http, Forwarding(call, purchase)
    receipt = responder.receipt(call)
    try:
        answer = await forwarding.answer()
        lines, has_date = headers.answer_lines(http, call.gate, call.facts, answer.head)
        if isinstance(answer.body, list):
            credit.serve(answer.head.status)
            responder.relay(
                call, answer.head, lines + receipt, answer.body, answer.length_bytes or 0, has_date=has_date
            )
        else:
            status, length_bytes = answer.head.status, answer.length_bytes
            slowly = responder.relay_slowly(call, status, lines + receipt, answer.body, length_bytes, has_date=has_date)
            await call.driver.in_task(slowly)
            credit.serve(status)
            http.end()
    except ApiError as error:
        if not http.response_started:
            raise
        _LOG.info("stream_cut", code=error.code.value, slug=call.gate.gate.slug, request_id=http.request_id)
        await credit.leave(Ending.BROKEN_OFF, http.status, error.code)  # too late for a 502
        http.leave_unfinished()
    finally:
        forwarding.close()


async def _end(call: PaidCall, credit: Credit, fault: BaseException) -> None:
    """End a call that is not answered with what its gate sells. What is found wrong meanwhile ends it anew."""
    for _ in range(_ENDINGS_MAX):
        try:
            if isinstance(fault, CutShortError):
                await _end_cut(call, credit, fault.cut)
            elif credit.is_taken:
                await _end_paid(call, credit, fault)
            elif credit.state is not CreditState.CLOSED:
                await _refuse(call, fault)
            else:
                call.http.fail(fault)
        except (Exception, CutShortError) as other:  # noqa: BLE001 - as in `serve`
            fault = other
        else:
            return
    call.http.fail(fault)


async def _end_cut(call: PaidCall, credit: Credit, cut: Cut) -> None:
    """End a call whose client left, or that the process's stop cuts: a 503, unless an answer has begun."""
    http = call.http
    if cut is Cut.LEFT:
        await credit.leave(Ending.LEFT, CLIENT_GONE_STATUS)
        _LOG.info("client_gone", request_id=http.request_id)
    elif http.response_started:
        await credit.leave(Ending.BROKEN_OFF, GIVEN_UP_STATUS, Code.UNAVAILABLE)
        http.abort()
    else:
        await credit.leave(Ending.STOPPED, GIVEN_UP_STATUS, Code.UNAVAILABLE)
        message = "the gateway is stopping; send the same request again, it is not charged twice"
        responder.stopped(call, ApiError(Code.UNAVAILABLE, message), responder.token_line(call, call.claimed))


async def _end_paid(call: PaidCall, credit: Credit, fault: BaseException) -> None:
    """Answer a failure with the receipt, and with what becomes of the credit."""
    http, error = call.http, responder.refusal_of(call, fault)
    if http.response_started:
        await credit.leave(Ending.BROKEN_OFF, error.status, error.code)
        http.abort()
        return
    event = "target_failed" if error.status == 502 else "call_failed"
    _LOG.info(event, code=error.code.value, slug=call.gate.gate.slug, request_id=http.request_id)
    outcome = await credit.leave(ending_of(error, call.gate.gate.on_failure), error.status, error.code)
    try:
        receipt = responder.receipt(call, outcome.left)
    except Exception:  # noqa: BLE001 - logged; then the caller is told without it
        _LOG.exception("receipt_not_made", request_id=http.request_id)
        receipt = b""
    responder.failed(call, error.adding(outcome.told), receipt)


async def _refuse(call: PaidCall, fault: BaseException) -> None:
    """Answer a refusal, as contract 4.5 has it; `ApiError.at_gate` gives a refused payment its status at a gate.

    credits used up               402 as if unpaid; 404 where nothing is sold, 503 while nothing can be paid for
    nothing shown yet             as it is; 404 where the gate is deleted, but for a 401, a 429 and a 503
    its outcome is not known yet  503, with the credit token of the purchase that was claimed
    a refused payment: 402        the requirements stand beside it, as they are by now, so that a client can pay another
                                  (404, 503 as above); where the token counts, with that of the claim, which its next
                                  try needs
    a fault of ours               500, with the token of the claim that it wrote
    anything else                 as it is; 404 where the gate is deleted, but for a 503
    """
    http, limit = call.http, call.context.limit
    gate: OpenGate | None = call.gate  # of an unknown slug there is none
    if isinstance(fault, ExhaustedError):
        gate = await call.newest_gate()
        if (unsold := gate.unsold()) is not None:
            responder.refuse(call, gate, unsold, limit.challenged(http))
        else:
            responder.exhausted(call, gate, fault)
    elif not isinstance(fault, ApiError):
        if call.claimed is None:
            http.fail(fault)
        else:
            responder.failed(call, responder.refusal_of(call, fault), responder.token_line(call, call.claimed))
    elif gate is None or call.buyer is None:
        is_hidden = gate is not None and gate.is_deleted and fault.status not in {401, 429, 503}
        responder.refuse(call, gate, not_found() if is_hidden else fault, limit.refused(http, fault))
    else:
        await _refuse_shown(call, fault.at_gate())


async def _refuse_shown(call: PaidCall, error: ApiError) -> None:
    """Answer the refusal of a payment or a token that was shown."""
    gate = await call.newest_gate() if error.status == 402 else call.gate
    lines = call.context.limit.refused(call.http, error)
    is_for_next_try = error.status == 402 and gate.gate.credit_binding is CreditBinding.TOKEN
    if error.status == 503 or is_for_next_try:
        lines += responder.token_line(call, call.claimed)
    if error.status == 402:
        error = gate.unsold() or error
    if error.status == 402:
        responder.refuse_payment(call, gate, error, lines)
    else:
        is_hidden = gate.is_deleted and error.status != 503
        responder.refuse(call, gate, not_found() if is_hidden else error, lines)
