"""Under which key the hub is asked for a direct transfer (contract 5.2, 8).

A key seen before gives the outcome of its attempt and never starts another. So the key is made of the whole request,
the payment's signature in it: whoever sends the very same again, to whichever process, is told what became of it, and
another request with the same payment learns only that the payment is used. Nobody can take the key first: before the
hub has bound it, which is before the transaction goes out, nobody but the payer knows the signature.

A request that was refused, or failed, may be good later, and is then another attempt. Its key is stored, and is random:
by then the signature may be public. A caller's own `Idempotency-Key` stands in place of all this: it gives one request
one answer, a refusal for a day (the hub forgets it then), and is bound to the payer, so that callers do not meet. One
that a stranger guesses he can take first: then it is a conflict, nothing is started, and the payer takes another.

Where a fee is charged the key is the pair's, of fee and transfer, and the charge is bound to what was signed: else the
refusal of another signature would give the fee back while its transfer is under way. A transfer is held by the charge
that pays for it, and by no other one until that was given back: a facilitator that is not ours may call it valid while
it is making it, and two fees would be charged for one transfer. With a charge is kept which facilitator is asked,
because another one's refusal says nothing of what that one made (decision 0055), and since when, because a chain of
blocks shows only who knows that whether the transfer was made (decision 0024). At a facilitator that is not ours the
same is kept of a transfer without a fee, and a caller's own key is bound to that transfer's payment here.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tollkeeper.core.errors import ApiError, Code
from tollkeeper.storage.transfer_keys import bind_key, drop_key, is_kept, keep_key, key_of, renew_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tollkeeper.core.wire import PaymentKey
    from tollkeeper.storage.database import Database
    from tollkeeper.storage.spending import Unless

    IsCharged = Callable[[str], Awaitable[bool]]

IDEMPOTENCY_KEY: Final = "Idempotency-Key"
_AT: Final = "at "


class FirstAsked(NamedTuple):
    """Which facilitator a transfer was asked of, and when (Unix milliseconds); None where only the place was kept."""

    place: str
    since_ms: int | None


class OtherFeeError(ApiError):
    """409: another fee was charged for the transfer."""

    def __init__(self) -> None:
        message = "another fee was paid for this transfer, and what became of it may not be known yet: send that fee"
        super().__init__(Code.CONFLICT, message)


class GivenBackError(ApiError):
    """409: the charge was given back, to another request of its pair, before it held the transfer."""

    def __init__(self) -> None:
        super().__init__(Code.CONFLICT, "this fee was given back meanwhile: send the same request again")


def own_key_at_hub(own: str, payer: str) -> str:
    """What the hub is told of a caller's own key."""
    return f"transfer-own-{_digest(f'{payer}/{own}'.encode())}"


def of_transfer(transfer: PaymentKey) -> str:
    """The name under which the charge is kept that holds a transfer, or held it last."""
    return f"transfer-paid-{_digest(transfer.status_path.encode())}"


def key_conflict() -> ApiError:
    """409: the caller's own key came with another request."""
    details = {"field": IDEMPOTENCY_KEY}
    return ApiError(Code.CONFLICT, f"this {IDEMPOTENCY_KEY} came with another request", details=details)


def other_signature() -> ApiError:
    """409: what the fee was charged for was signed otherwise. Nothing of that is known by this."""
    return ApiError(Code.CONFLICT, "this fee was paid for the same transfer with another signature: send that")


@dataclass(frozen=True, slots=True)
class TransferKeys:
    """The keys of one database. `new_id` makes names that nobody guesses."""

    database: Database
    clock_ms: Callable[[], int]
    new_id: Callable[[], str]

    async def of_request(self, body: bytes) -> str:
        """The key of what the hub is asked by `body`."""
        name = _digest(body)
        return await key_of(self.database, name) or _made_of(name)

    async def renewed(self, body: bytes, former: str) -> str:
        """The key of the same request's next attempt, `former` having shown how one ended."""
        fresh = f"transfer-{self.new_id()}"
        return await self.database.run(renew_key(_digest(body), former, fresh, self.clock_ms()))

    async def bind_own(self, own: str, payer: str, request: str) -> bool:
        """Lets a caller's own key stand for a request; whether it stood for none before.

        Raises: CONFLICT where it stands for another: at our hub a request, before it a pair, or what another
        facilitator was asked.
        """
        name = own_key_at_hub(own, payer)
        was_free = await key_of(self.database, name) is None
        if await self.database.run(bind_key(name, request, self.clock_ms())) != request:
            raise key_conflict()
        return was_free

    async def keep_own(self, own: str, payer: str, request: str) -> None:
        """The same of what the hub has bound: where a fee is asked for, it is asked under the pair's name."""
        await self.database.run(keep_key(own_key_at_hub(own, payer), request, self.clock_ms()))

    async def let_go_of_own(self, own: str, payer: str, request: str) -> None:
        """Lets it stand for nothing again: the request was refused, and started nothing."""
        await self.database.run(drop_key(own_key_at_hub(own, payer), request))

    async def bind_pair(self, call_id: str, payload: dict[str, Any]) -> None:
        """Lets a fee's charge be for this payload alone, before it is made. Raises: CONFLICT where it is another's."""
        signed = _digest_of(payload)
        if await self.database.run(bind_key(_of_pair(call_id), signed, self.clock_ms())) != signed:
            raise other_signature()

    async def require_pair(self, call_id: str, payload: dict[str, Any]) -> None:
        """The same of a charge that was made. Nobody knows it of one that is older than these keys."""
        if await key_of(self.database, _of_pair(call_id)) not in {None, _digest_of(payload)}:
            raise other_signature()

    async def require_free(self, transfer: PaymentKey, call_id: str, is_charged: IsCharged) -> None:
        """Raises: OtherFeeError while another charge than this pays for the transfer."""
        held = await key_of(self.database, of_transfer(transfer))
        if held not in {None, call_id} and await is_charged(held):
            raise OtherFeeError

    async def hold(self, transfer: PaymentKey, call_id: str, is_charged: IsCharged) -> None:
        """Lets this charge, which was made, be the only one that pays for the transfer.

        Only charges hold: who is still buying his fee may never have bought it. Raises: as `require_free`;
        GivenBackError where another request of its pair had it given back meanwhile: its transfer was refused, or was
        held by another charge.
        """
        name = of_transfer(transfer)
        held = await self.database.run(bind_key(name, call_id, self.clock_ms()))
        while held != call_id:
            if await is_charged(held):
                raise OtherFeeError
            held = await self.database.run(renew_key(name, held, call_id, self.clock_ms()))
        if not await is_charged(call_id):
            raise GivenBackError

    def held_by(self, transfer: PaymentKey, call_id: str) -> Unless:
        """Whether this charge holds the transfer, for the unit that gives it back because another one does.

        Meanwhile that one may have let go, and another request of this charge's pair have taken the transfer for it.
        """
        return partial(is_kept, of_transfer(transfer), call_id)

    async def keep_first(self, call_id: str, place: str) -> None:
        """Keeps which facilitator a transfer is asked of first, and when, before its fee is charged.

        Where that was not charged, another process may be charging it yet, and ask that one: so the first one stays.
        """
        now_ms = self.clock_ms()
        await self.database.run(keep_key(_of_place(call_id), f"{_AT}{now_ms} {place}", now_ms))

    async def first_of_free(self, payment: PaymentKey, place: str) -> FirstAsked | None:
        """The same of a transfer without a fee, which is kept by this where it was not before."""
        name = f"free-{_digest(payment.status_path.encode())}"
        await self.keep_first(name, place)
        return await self.first_of(name)

    async def first_of(self, call_id: str) -> FirstAsked | None:
        """What `keep_first` kept; None where nobody knows it any more, or of a charge that is older than this."""
        kept = await key_of(self.database, _of_place(call_id))
        return None if kept is None else _first_asked(kept.removeprefix(_AT))


def _first_asked(kept: str) -> FirstAsked:
    since, parted, place = kept.partition(" ")
    return FirstAsked(place, int(since)) if parted and since.isdigit() else FirstAsked(kept, None)


def _of_place(call_id: str) -> str:
    return f"transfer-{call_id}-place"


def _of_pair(call_id: str) -> str:
    return f"transfer-{call_id}"


def _digest_of(payload: dict[str, Any]) -> str:
    return _digest(json.dumps(payload, sort_keys=True).encode())


def _made_of(name: str) -> str:
    return f"transfer-{name}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
