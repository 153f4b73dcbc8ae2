"""What a worker and the ledger process say to each other over their socket: frames of MessagePack.

A frame is its length in four bytes and one message. A worker numbers its requests; answers come in any order. `Spends`
and `Run` are whole units. Any other unit of a worker is driven step by step: `Begin` and every `Step` carry one
statement and are answered by its `Rows`, or a part of several, whose result is `Played`; `End` or `Abort` are answered
by `Done` once the transaction is durable, which an aborted one waits for too. Unasked, the ledger process greets: on
every new connection, so that one which nobody serves is not taken for a process, and from time to time, so that a
worker need not wait for ever for one that hangs.
"""

from __future__ import annotations

from typing import Any, Final, Self, TypeAlias

import msgspec

from tollkeeper.core.purchases import Spend
from tollkeeper.storage.claims import PrepareClaims, Prepared, Recorded, RecordSigned
from tollkeeper.storage.database import ConstraintError, LostError, Part, Statement, StatementError, StorageError
from tollkeeper.storage.first_purchase import Claimed, ClaimPurchase, GrantPurchase
from tollkeeper.storage.purchase_rows import Purchase, SpendResult
from tollkeeper.storage.settlements import AllMoved, MoveAll
from tollkeeper.storage.single_spends import SpendOfPayer, SpendOne
from tollkeeper.storage.spending import HeldSpend, KnownSpends, Spent

FRAME_SIZE_MAX_BYTES: Final = 256 * 1024 * 1024
_LENGTH_SIZE_BYTES: Final = 4
GREETING: Final = 0  # the number that no request has
GREET_EVERY_SECONDS: Final = 2.0


class Sql(msgspec.Struct, array_like=True):
    """A `Statement`; its values are not declared, because a declared union of text and bytes cannot be decoded."""

    text: str
    params: dict[str, Any]

    @classmethod
    def of(cls, statement: Statement) -> Self:
        """The statement as it is sent."""
        return cls(statement.sql, statement.params)

    def statement(self) -> Statement:
        """The statement as it was."""
        return Statement(self.text, self.params)


class Read(msgspec.Struct, tag=1, array_like=True):
    """`Database.read`, `read_short` or `read_long`: that is its name."""

    number: int
    sql: Sql
    by: str


SentPart: TypeAlias = PrepareClaims | RecordSigned | MoveAll


class Begin(msgspec.Struct, tag=2, array_like=True):
    """A unit and its first statement or part."""

    number: int
    sql: Sql | None
    part: SentPart | None = None


class Step(msgspec.Struct, tag=3, array_like=True):
    """The unit's next statement or part."""

    number: int
    sql: Sql | None
    part: SentPart | None = None


class End(msgspec.Struct, tag=4, array_like=True):
    """The unit returned: commit it."""

    number: int


class Abort(msgspec.Struct, tag=5, array_like=True):
    """The unit raised: undo it."""

    number: int


class Spends(msgspec.Struct, tag=6, array_like=True):
    """A batch of spends. `is_again`: it was sent before, to a process that went away without an answer."""

    number: int
    spends: list[HeldSpend]
    now_ms: int
    is_again: bool = False
    ended: dict[int, list[str]] = {}
    known: KnownSpends | None = None
    is_alone: bool = False


Whole: TypeAlias = ClaimPurchase | GrantPurchase | SpendOne | SpendOfPayer


class Run(msgspec.Struct, tag=7, array_like=True):
    """A unit that is sent whole."""

    number: int
    job: Whole


class Rows(msgspec.Struct, tag=11, array_like=True):
    """The rows of a read or of a step."""

    number: int
    rows: list[dict[str, Any]]


class Played(msgspec.Struct, tag=17, array_like=True):
    """What a part of a unit came to."""

    number: int
    result: Prepared | Recorded | AllMoved


class Done(msgspec.Struct, tag=12, array_like=True):
    """The unit's transaction is durable."""

    number: int


class Failed(msgspec.Struct, tag=13, array_like=True):
    """The request failed; nothing of it was done, or with a StorageError nobody knows."""

    number: int
    kind: str
    message: str


class Told(msgspec.Struct, tag=21, array_like=True):
    """A `SpendResult` with its purchase."""

    outcome: Spend
    purchase: Purchase | None


class SpendsDone(msgspec.Struct, tag=14, array_like=True):
    """The answers to a batch, as `spending.Spent` has them."""

    number: int
    others: list[Told]
    lefts: list[int | Told | None]
    row: int


class ClaimRan(msgspec.Struct, tag=15, array_like=True):
    """The claim's unit is durable; its result."""

    number: int
    result: Claimed


class SpendRan(msgspec.Struct, tag=16, array_like=True):
    """The unit of a grant or of one spend is durable; its result."""

    number: int
    result: SpendResult


Request: TypeAlias = Read | Begin | Step | End | Abort | Spends | Run
Answer: TypeAlias = Rows | Played | Done | Failed | SpendsDone | ClaimRan | SpendRan

_ENCODE: Final = msgspec.msgpack.Encoder().encode
decode_request: Final = msgspec.msgpack.Decoder(Request).decode
decode_answer: Final = msgspec.msgpack.Decoder(Answer).decode

_ERRORS: Final[dict[str, type[Exception]]] = {
    "constraint": ConstraintError,
    "statement": StatementError,
    "overflow": OverflowError,
}


def asked(request: Begin | Step) -> Statement | Part:
    """What a unit yielded. Raises: ValueError for neither."""
    if request.part is not None:
        return Part(request.part)
    if request.sql is None:
        raise ValueError("neither a statement nor a part")
    return request.sql.statement()


def frame(message: Request | Answer) -> bytes:
    """The message as it is sent. Raises: OverflowError for an integer beyond 64 bits."""
    body = _ENCODE(message)
    return len(body).to_bytes(_LENGTH_SIZE_BYTES, "big") + body


class Frames:
    """Cuts what arrives into the bodies of messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that are complete with these bytes. Raises: ValueError for one that is too long."""
        self._buffer += data
        bodies: list[bytes] = []
        position = 0
        while len(self._buffer) - position >= _LENGTH_SIZE_BYTES:
            begin = position + _LENGTH_SIZE_BYTES
            size = int.from_bytes(self._buffer[position:begin], "big")
            if size > FRAME_SIZE_MAX_BYTES:
                msg = f"a frame of {size} bytes"
                raise ValueError(msg)
            if len(self._buffer) < begin + size:
                break
            bodies.append(bytes(self._buffer[begin : begin + size]))
            position = begin + size
        del self._buffer[:position]
        return bodies


def failed(number: int, error: BaseException) -> Failed:
    """What a worker is told of an exception."""
    if isinstance(error, StorageError):
        return Failed(number, "storage", error.message)
    kind = next((name for name, known in _ERRORS.items() if isinstance(error, known)), "fault")
    return Failed(number, kind, str(error))


def error_of(answer: Failed) -> Exception:
    """The exception that an answer stands for."""
    if answer.kind == "lost":
        return LostError(answer.message)
    if answer.kind == "storage":
        return StorageError(answer.message)
    return _ERRORS.get(answer.kind, RuntimeError)(answer.message)


def spends_done(number: int, spent: Spent) -> SpendsDone:
    """What a worker is told of its batch."""
    others = [_told(result) for result in spent.others]
    lefts = [_told(left) if isinstance(left, SpendResult) else left for left in spent.lefts]
    return SpendsDone(number, others, lefts, spent.row)


def spent_of(told: SpendsDone) -> Spent:
    """The answers that it stands for."""
    others = [_result_of(one) for one in told.others]
    return Spent(others, [_result_of(left) if isinstance(left, Told) else left for left in told.lefts], told.row)


def _told(result: SpendResult) -> Told:
    return Told(result.outcome, result.purchase)


def _result_of(told: Told) -> SpendResult:
    return SpendResult(told.outcome, told.purchase)
