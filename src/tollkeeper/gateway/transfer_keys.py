"""Under which key the hub is asked for a direct transfer (contract 5.2, 8).

A key seen before gives the outcome of its attempt and never starts another. So the key is made of the whole request,
the payment's signature in it: whoever sends the very same again, to whichever process, is told what became of it, and
another request with the same payment learns only that the payment is used. Nobody can take the key first: before the
hub has bound it, which is before the transaction goes out, nobody but the payer knows the signature.

A request that was refused, or failed, may be good later, and is then another attempt. Its key is stored, and is random:
by then the signature may be public. A caller's own `Idempotency-Key` stands in place of all this: it gives one request
one answer, a refusal for a day (the hub forgets it then), and is bound to the payer, so that callers do not meet.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.core.errors import ApiError, Code, invalid
from tollkeeper.gateway.creating_once import UNGUESSABLE_LENGTH, key_among
from tollkeeper.storage.transfer_keys import bind_key, key_of, renew_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tollkeeper.storage.database import Database

IDEMPOTENCY_KEY: Final = "Idempotency-Key"


def own_key_among(sent: Sequence[str]) -> str | None:
    """A caller's own key, of all that came. Raises: INVALID_PARAMETER for one that is none or could be guessed."""
    key = key_among(sent)
    if key is not None and len(key) < UNGUESSABLE_LENGTH:
        raise invalid(IDEMPOTENCY_KEY, f"{IDEMPOTENCY_KEY} must have at least {UNGUESSABLE_LENGTH} characters here")
    return key


def own_key_at_hub(own: str, payer: str) -> str:
    """What the hub is told of a caller's own key."""
    return f"transfer-own-{_digest(f'{payer}/{own}'.encode())}"


def key_conflict() -> ApiError:
    """409: the caller's own key came with another request."""
    details = {"field": IDEMPOTENCY_KEY}
    return ApiError(Code.CONFLICT, f"this {IDEMPOTENCY_KEY} came with another request", details=details)


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

    async def bind_own(self, own: str, payer: str, request: str) -> None:
        """Lets a caller's own key stand for a request. Raises: CONFLICT where it stands for another."""
        bound = await self.database.run(bind_key(own_key_at_hub(own, payer), request, self.clock_ms()))
        if bound != request:
            raise key_conflict()


def _made_of(name: str) -> str:
    return f"transfer-{name}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
