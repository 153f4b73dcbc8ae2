"""POST /api/v1/transfer: a transfer behind the 402 that asks for that very transfer (specification 4.1; contract 8).

Without `X-Payment` the answer is a 402 whose requirements are the body's own network, recipient and value. With an
`X-Payment` of the same payer, recipient, value and network that authorization is transferred, once, by the hub; the
body's own, where it is another one, is left unused, because an official client answers a 402 with a fresh nonce. Nobody
pays twice, and whoever sends the very same again is told what became of it (`transfer_keys`). Where the operator asks
for a fee the 402 asks for that in place of it, `X-Payment` pays the fee (`transfer_fee`) and the body's own is
transferred. What a request describes is read in `transfer_wishes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
from litestar import Request, Response

from tollkeeper.api import clock_ms, iso, json_body, ok
from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.challenge import Profile, exhausted_body, profile_of
from tollkeeper.core.errors import ApiError, Code, payment_error
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.verification import code_of_reason
from tollkeeper.core.wire import encode_header
from tollkeeper.describing import route
from tollkeeper.gateway import calls, operations
from tollkeeper.gateway.hub_client import HubUnreachableError, asked_of, log_refused_signature, transfer_body
from tollkeeper.gateway.steps import ExhaustedError
from tollkeeper.gateway.transfer_abroad import UnprovenRefusal
from tollkeeper.gateway.transfer_keys import (
    GivenBackError,
    OtherFeeError,
    key_conflict,
    other_signature,
    own_key_at_hub,
)
from tollkeeper.storage.database import ConstraintError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from litestar.handlers import HTTPRouteHandler

    from tollkeeper.core.tenders import Tender
    from tollkeeper.core.wire import Payment, PaymentKey
    from tollkeeper.gateway.hub_client import HubClient
    from tollkeeper.gateway.returned_fees import ReturnedFees
    from tollkeeper.gateway.transfer_abroad import Abroad
    from tollkeeper.gateway.transfer_fee import FeeCharges, TransferFees
    from tollkeeper.gateway.transfer_keys import TransferKeys
    from tollkeeper.gateway.transfer_wishes import Wish, Wishes

_DONE: Final = 200
_REFUSED: Final = 400
_CONFLICT: Final = 409
_FAULTS: Final = 500
# For which a transfer that was made is refused when it is asked for anew.
_MAY_BE_MADE: Final = frozenset({Code.NONCE_ALREADY_USED, Code.PAYMENT_EXPIRED})
_LOG: Final = structlog.get_logger("tollkeeper.gateway.transfer")
_NO_STORE: Final = {"Cache-Control": "no-store"}


@dataclass(slots=True, kw_only=True)
class DirectTransfers:
    """Answers the endpoint."""

    wishes: Wishes
    hub: HubClient
    hub_url: str
    profile: Profile
    charges: FeeCharges
    keys: TransferKeys
    abroad: Abroad
    returned: ReturnedFees

    async def make(self, wish: Wish, headers: Sequence[str]) -> dict[str, Any]:
        """The hub's transfer body, for what `X-Payment` pays: the transfer itself, or its fee.

        A fee that was charged for it is its fee, also where none is asked for by now, and what was begun without one
        needs none: whose answer was lost is not to sign another transfer. Raises: as `carry_out`; ExhaustedError;
        CONFLICT where another fee pays for the transfer; INVALID_NETWORK where a fee is asked for that cannot be paid
        on the transfer's network.
        """
        if len(headers) != 1:
            raise payment_error(Code.PAYMENT_INVALID, "X-Payment is there more than once")
        (header,) = headers
        while True:
            try:
                return await self._make(wish, header)
            except GivenBackError:
                # Whoever sends it again is charged under the pair's next id, of which there are not many: so is this.
                continue

    async def _make(self, wish: Wish, header: str) -> dict[str, Any]:
        """The same, once. Raises: GivenBackError, too."""
        fees = self.wishes.fees
        is_charging = fees is not None and fees.is_paid_on(wish.asset.network)
        if not is_charging and (call_id := await self._charged_before(wish, header)) is not None:
            return await self._carry_out_charged(wish, call_id)
        if fees is None:
            return await self.carry_out(wish, *self.wishes.read_payment(wish, header))
        if (begun := await self._begun_without_fee(wish, header)) is not None:
            return await self.carry_out(wish, *begun)
        self.wishes.require_payable(wish.asset)
        return await self._carry_out_for_fee(wish, header, fees)

    async def _carry_out_for_fee(self, wish: Wish, header: str, fees: TransferFees) -> dict[str, Any]:
        """The same for a fee, which is charged once for this transfer, and only if the hub would make it."""
        presented = self.charges.read(header, wish.tender.key)
        call_id, is_charged = await self.charges.standing(presented, wish.tender.key)
        while not is_charged:
            try:
                await self._require_good(wish)
                await self.keys.require_free(wish.tender.key, call_id, self.charges.is_charged)
                await self.keys.bind_pair(call_id, wish.payment.payload.body())
                await self.keys.keep_first(call_id, self.hub.place)
                await self._bind_own(wish, call_id)
                await fees.charge(wish.asset.network.name, presented, wish.fee_token, call_id)
            except (ApiError, ExhaustedError, ConstraintError) as refused:
                # The same pair may have been asked for at the same time: what came of that, everybody is told. Where
                # that was charged and given back meanwhile, its id is used up and the next one is to be charged.
                asked, (call_id, is_charged) = call_id, await self.charges.standing(presented, wish.tender.key)
                if not is_charged and call_id == asked:
                    if (done := await self._made_after_all(wish, call_id, refused)) is None:
                        raise
                    return done
            else:
                return await self._carry_out_held(wish, call_id)
        return await self._carry_out_charged(wish, call_id)

    async def _charged_before(self, wish: Wish, header: str) -> str | None:
        """Under which id a fee was charged for the transfer with this payment; None where it is no such fee."""
        try:
            presented = self.charges.read(header, wish.tender.key)
        except ApiError:
            return None
        call_id, is_charged = await self.charges.standing(presented, wish.tender.key)
        return call_id if is_charged else None

    async def _begun_without_fee(self, wish: Wish, header: str) -> tuple[Payment, Tender] | None:
        """The payment, where our hub makes the body's transfer with it, or did, and no fee was paid with it; else None.

        What it never began costs a fee by now. Raises: SETTLEMENT_PENDING where it does not say.
        """
        try:
            payment, paid = self.wishes.read_payment(wish, header)
        except ApiError:
            return None
        if not self.wishes.supported().is_ours or await self.charges.has_bought(paid.key):
            return None
        try:
            told = await self.hub.payment_status(paid.key)
        except HubUnreachableError:
            raise self._pending(paid.key, "") from None
        if told is None or told.status == "failed" or await self.charges.has_bought(paid.key):  # a fee meanwhile
            return None
        return payment, paid

    async def _carry_out_charged(self, wish: Wish, call_id: str) -> dict[str, Any]:
        """The same for a charge that was made before. Raises: CONFLICT where it was for another signature."""
        await self.keys.require_pair(call_id, wish.payment.payload.body())
        await self._bind_own(wish, call_id)
        return await self._carry_out_held(wish, call_id)

    async def _carry_out_held(self, wish: Wish, call_id: str) -> dict[str, Any]:
        """The same for what is charged: it holds the transfer, and is given back where that was clearly not made."""
        try:
            await self.keys.hold(wish.tender.key, call_id, self.charges.is_charged)
        except OtherFeeError as held:  # after any other fault this charge may hold it, and the transfer be under way
            is_ours = self.keys.held_by(wish.tender.key, call_id)
            await self.charges.give_back(call_id, held.status, unless=is_ours)
            raise
        try:
            done = await self.carry_out(wish, wish.payment, wish.tender, call_id)
        except ApiError as error:
            # A 503 may be of a hub that made the transfer before.
            if error.status == _REFUSED and not isinstance(error, UnprovenRefusal):
                was_sent = not self.wishes.supported().is_ours or _is_of_sent(error)
                await self._give_back(wish, call_id, was_made=was_sent)
            raise
        if done["success"] is True:
            await self._keep(wish, call_id, done)
        else:
            await self._give_back(wish, call_id, was_made=True, failed_in=done["transaction"])
        return done

    async def _made_after_all(
        self, wish: Wish, call_id: str, refused: ApiError | ExhaustedError | ConstraintError
    ) -> dict[str, Any] | None:
        """What this pair's last charge made after it was given back: a reorganisation may take its failure back.

        Asked where the hub would not make it any more. None where it made nothing. Raises: SETTLEMENT_PENDING,
        UNAVAILABLE; CONFLICT for a caller's own key that came with another pair.
        """
        former = self.charges.former(call_id)
        if not self.wishes.supported().is_ours or former is None or getattr(refused, "code", None) not in _MAY_BE_MADE:
            return None
        await self._bind_own(wish, former)
        try:
            done = await self.carry_out(wish, wish.payment, wish.tender, former)
        except ApiError as error:
            if error.status >= _FAULTS:
                raise
            return None
        if done["success"] is not True:
            return None
        await self._keep(wish, former, done)
        return done

    async def _keep(self, wish: Wish, call_id: str, done: Mapping[str, Any]) -> None:
        """The transfer was made; where its fee had been given back, that may be owed."""
        if not await self.charges.keep(call_id):
            await self.returned.keep(call_id, wish.tender.key, done["transaction"])

    async def _give_back(self, wish: Wish, call_id: str, *, was_made: bool, failed_in: str = "") -> None:
        """The hub says that the transfer was not made. Where another one was asked first, that proves nothing.

        `was_made`: it is so, too, where it was told as made before: from a node's word alone, or before a
        reorganisation. `failed_in`: the transaction that was to make it, and failed in its block: it may succeed in
        another one yet.
        """
        first = await self.keys.first_of(call_id)
        if (
            first is None
            or first.place == self.hub.place
            or await self.abroad.is_never_made(wish.tender, wish.pay_to, first.since_ms)
        ):
            if failed_in:
                await self.returned.keep(call_id, wish.tender.key, failed_in)
            await self.charges.give_back(call_id, _REFUSED, was_made=was_made)
        else:
            _LOG.warning("fee_waits_for_its_facilitator", call_id=call_id, asked=first.place or "this one")

    async def _obstacle(self, wish: Wish, paid: Tender) -> ApiError | None:
        """Why a facilitator that is not ours should not be asked: it need not look whose the paid account is."""
        if self.wishes.supported().is_ours or not wish.asset.has_accounts:
            return None
        try:
            owner = await self.wishes.token_accounts.owner(paid.recipient, wish.asset)
        except RpcUnavailable:
            return None
        if owner == wish.pay_to:
            return None
        whose = "belongs to nobody" if owner is None else f"belongs to {owner}"
        message = f"the transfer was refused: the token account of {wish.pay_to} {whose}"
        details = {"reason": FAMILIES[wish.asset.network.family].not_payable}
        return payment_error(Code.PAYMENT_INVALID, message, details=details)

    async def _require_good(self, wish: Wish) -> None:
        """Raises: the refusal of a body's transfer that the hub would not make, or that would not arrive."""
        if (refused := await self._obstacle(wish, wish.tender)) is not None:
            raise refused
        verdict = await self.hub.verify(asked_of(wish.payment, self.wishes.own_terms(wish, wish.tender)))
        if not verdict.is_valid:
            reason = verdict.reason or "invalid_payment"
            message, details = f"the transfer would be refused: {reason}", {"reason": reason}
            if verdict.transaction:
                message += "; its transaction may have made it: look at that before you sign another"
                details["transaction"] = verdict.transaction
            raise payment_error(code_of_reason(reason), message, details=details)
        if not self.wishes.supported().is_ours:
            await self.abroad.require_unmade(wish.payment, wish.tender, wish.pay_to)

    async def _bind_own(self, wish: Wish, call_id: str) -> None:
        """Raises: CONFLICT for a caller's own key that came with another pair."""
        if wish.own_key is not None:
            await self.keys.bind_own(wish.own_key, wish.tender.key.payer, call_id.rpartition("-")[0])

    async def carry_out(self, wish: Wish, payment: Payment, paid: Tender, fee_key: str = "") -> dict[str, Any]:
        """The hub's transfer body. `fee_key`: under which the fee was charged, where there is one.

        Raises: the hub's refusal; SETTLEMENT_PENDING, UNAVAILABLE; CONFLICT for the caller's key of another request.
        """
        if not self.wishes.supported().is_ours:
            if wish.own_key is not None and not fee_key:  # a charge has bound it to its pair
                await self.keys.bind_own(wish.own_key, paid.key.payer, paid.key.status_path)
            terms = self.wishes.own_terms(wish, paid)
            obstacle = partial(self._obstacle, wish, paid)
            done = await self.abroad.make(
                payment, paid, terms, wish.pay_to, obstacle=obstacle, confirm=wish.confirm, fee_key=fee_key
            )
            if isinstance(done, str):
                raise self._pending(paid.key, done)
            return done
        asked = payment, wish.asset.address, paid.value, wish.pay_to
        body = transfer_body(*asked, confirm=wish.confirm, is_paid=bool(fee_key))
        if fee_key:
            answer = await self._ask_for_fee(wish, payment, paid, body, fee_key)
        elif wish.own_key is not None:
            answer = await self._ask_by_own_key(wish, body, paid.key, wish.own_key)
        else:
            answer = await self._ask_again(wish, body)
        if answer is None:
            raise self._pending(paid.key, "")
        status, said = answer
        if status == _DONE and type(said.get("success")) is bool and isinstance(said.get("transaction"), str):
            return said
        raise _refusal_of(status, said) or self._pending(paid.key, "")

    async def _ask(self, wish: Wish, body: bytes, key: str) -> tuple[int, dict[str, Any]] | None:
        return await self.hub.transfer(self.hub.transfer_request(body, key=key, wait_seconds=wish.wait_seconds))

    async def _ask_by_own_key(
        self, wish: Wish, body: bytes, paid: PaymentKey, own_key: str
    ) -> tuple[int, dict[str, Any]] | None:
        """Asks under the caller's own key. Raises: CONFLICT where it came with another request.

        It is the request's before the hub is asked, whose answer this process may not live to hear.
        """
        bound = own_key, paid.payer, paid.status_path
        is_new = await self.keys.bind_own(*bound)
        answer = await self._ask(wish, body, own_key_at_hub(own_key, paid.payer))
        if answer is None or answer[0] not in {_REFUSED, _CONFLICT}:  # it was started, or may have been
            await self.keys.keep_own(*bound)  # whoever was refused under it meanwhile has let go of it
        elif is_new and answer[0] == _REFUSED:  # of a conflict the same payment's other request may be the cause
            await self.keys.let_go_of_own(*bound)
        if answer is not None and answer[0] == _CONFLICT:
            raise key_conflict()
        return answer

    async def _ask_for_fee(
        self, wish: Wish, payment: Payment, paid: Tender, body: bytes, fee_key: str
    ) -> tuple[int, dict[str, Any]] | None:
        """Asks under the name of the fee and the transfer, which shows what became of them however it is asked.

        The hub keeps a key for one request, and `confirm` is of the request: where the pair was asked with the other
        one, so is this. Raises: SETTLEMENT_PENDING, CONFLICT for another signature of the same transfer.
        """
        answer = await self._ask(wish, body, fee_key)
        if answer is None or answer[0] != _CONFLICT:
            return answer
        asked = payment, wish.asset.address, paid.value, wish.pay_to
        other = transfer_body(*asked, confirm=not wish.confirm, is_paid=True)
        answer = await self._ask(wish, other, fee_key)
        if answer is None:
            return None
        status, said = answer
        if status == _CONFLICT:  # nothing is known of the fee's transfer by this, so the fee stays where it is
            raise other_signature()
        if status == _DONE and said.get("success") is True and wish.confirm:
            await self._require_confirmed(paid.key, str(said.get("transaction")))
        return answer

    async def _require_confirmed(self, key: PaymentKey, transaction: str) -> None:
        """Raises: SETTLEMENT_PENDING for a success that was told before it was as deep as it must be."""
        try:
            told = await self.hub.payment_status(key)
        except HubUnreachableError:
            told = None
        if told is None or told.status != "success":
            raise self._pending(key, transaction)

    async def _ask_again(self, wish: Wish, body: bytes) -> tuple[int, dict[str, Any]] | None:
        """Asks under the key of the request's attempt, which shows that attempt's outcome as often as it is asked."""
        key = await self.keys.of_request(body)
        answer = await self._ask(wish, body, key)
        if answer is None:
            return None
        status, said = answer
        if status == _CONFLICT:  # the key is another request's: nothing of this one was ever started under it
            return await self._ask(wish, body, await self.keys.renewed(body, key))
        if (status == _DONE and said.get("success") is False) or (status == _REFUSED and _may_be_good_later(said)):
            await self.keys.renewed(body, key)
        return answer

    def _pending(self, key: PaymentKey, transaction: str) -> ApiError:
        return ApiError(
            Code.SETTLEMENT_PENDING,
            "the outcome of this transfer is not known yet: send the same payment again, do not sign a new one",
            details={"transaction": transaction, "statusUrl": self.hub_url + key.status_path, "network": key.network},
        )


def transfer_routes(transfers: DirectTransfers) -> list[HTTPRouteHandler]:
    """The route handler."""

    @route(operations.TRANSFER)
    async def transfer(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Contract 8: 402 without a payment, the hub's transfer body with one."""
        wish = await transfers.wishes.read(await json_body(request), request.headers)
        headers = request.headers.getall("x-payment", [])

        def ask(spent: ExhaustedError | None = None) -> Response[bytes]:
            profile = profile_of(request.headers.get("accept", ""), transfers.profile)
            challenge, now = transfers.wishes.challenge(wish), iso(clock_ms())
            if spent is None:
                body = challenge.body(profile, now)
            else:
                detail = calls.exhausted(spent).body()
                body = exhausted_body(challenge, detail, profile, now)
            return Response(body, status_code=402, headers=_NO_STORE, media_type="application/json")

        if not headers:
            return ask()
        try:
            done = await transfers.make(wish, headers)
        except ExhaustedError as spent:
            return ask(spent)
        told = {name: value for name, value in done.items() if name not in {"apiVersion", "timestamp"}}
        receipt = {name: told.get(name) for name in ("success", "transaction", "network", "payer", "amount")}
        return ok(told, headers={**_NO_STORE, "X-Payment-Response": encode_header(receipt)})

    return [transfer]


def _may_be_good_later(said: Mapping[str, Any]) -> bool:
    """Is it a refusal that the hub keeps with the key, so that another attempt needs another one?"""
    error = said.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    return code in set(Code)


def _is_of_sent(refused: ApiError) -> bool:
    """Is our hub's refusal what became of a transaction of its own, which made nothing?

    One that names none may be of a hub that has forgotten what it made; what one calls used, may have been made.
    """
    return refused.code is not Code.NONCE_ALREADY_USED and bool((refused.details or {}).get("transaction"))


def _refusal_of(status: int, body: Mapping[str, Any]) -> ApiError | None:
    """The hub's refusal as ours; None where its answer says nothing that a caller could rely on."""
    error = body.get("error")
    if not isinstance(error, dict) or error.get("code") not in set(Code):
        return None
    code, message = Code(error["code"]), str(error.get("message", ""))
    details = error.get("details") if isinstance(error.get("details"), dict) else None
    if status == 400:
        make = payment_error if error.get("type") == "payment" else ApiError
        return make(code, message, details=details)
    if status == 503 and code in {Code.SETTLEMENT_PENDING, Code.UNAVAILABLE}:
        return ApiError(code, message, details=details)
    if status == 401:  # our own signature was refused: nothing was started by this, and may have been before
        log_refused_signature(body)
    return None
