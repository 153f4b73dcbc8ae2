"""Questions that several files ask a Solana node, and strict readers of its answers (specification 2.3; security A-15).

An answer that cannot be read counts as no answer: nothing is concluded from it.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.chains.replies import RpcError, RpcUnavailable
from tollkeeper.chains.sightings import NOTHING_SEEN, Sighting, Verdict
from tollkeeper.core.solana.base58 import decode_key, encode_key
from tollkeeper.core.solana.programs import TokenAccount, read_token_account

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tollkeeper.chains.replies import Answer
    from tollkeeper.chains.rpc import Call

# Slots, heights, times and lamports all lie far below.
_NUMBERS_END: Final = 2**63
FINAL: Final = "finalized"
CONFIRMED: Final = {"commitment": "confirmed"}
FINALIZED: Final = {"commitment": FINAL}
BASE64: Final = {"encoding": "base64", **CONFIRMED}


def statuses_of(signatures: Sequence[str]) -> Call:
    """Ask what became of these transactions, at most 256."""
    return "getSignatureStatuses", [list(signatures), {"searchTransactionHistory": True}]


def read_blockhash(value: object) -> str:
    """Return the blockhash in an answer to `getLatestBlockhash`. Raises: RpcUnavailable."""
    blockhash = value.get("blockhash") if isinstance(value, dict) else None
    try:
        return encode_key(decode_key(str(blockhash)))
    except ValueError as error:
        raise RpcUnavailable("the node tells no blockhash") from error


def read_value(answer: Answer) -> Any:  # noqa: ANN401 - JSON
    """Return the value of an answer with a slot. Raises: RpcUnavailable."""
    if isinstance(answer, RpcError):
        raise RpcUnavailable(f"the node refused a read: {answer.message}") from answer
    if not isinstance(answer, dict) or "value" not in answer:
        raise RpcUnavailable("the node's answer has no value")
    return answer["value"]


def read_flag(answer: Answer) -> bool:
    """Return the yes or no that an answer with a slot says. Raises: RpcUnavailable."""
    value = read_value(answer)
    if not isinstance(value, bool):
        raise RpcUnavailable("the node says neither yes nor no")
    return value


def read_slot(answer: Answer) -> int:
    """Return the slot that an answer is of. Raises: RpcUnavailable."""
    try:
        return read_number(answer["context"]["slot"])  # type: ignore[index]  # an error is no such answer either
    except (KeyError, TypeError) as error:
        raise RpcUnavailable("the node's answer names no slot") from error


def read_list(answer: Answer, asked: int) -> list[object]:
    """Return the answer about each of so many that were asked about. Raises: RpcUnavailable."""
    found = read_value(answer)
    if not isinstance(found, list) or len(found) != asked:
        raise RpcUnavailable("the node does not answer for each that was asked about")
    return found


def number_or_none(value: object) -> int | None:
    """Return a number that counts something; None for what is none, or more than a database can hold."""
    return value if type(value) is int and 0 <= value < _NUMBERS_END else None


def read_number(value: object) -> int:
    """Return a number that counts something. Raises: RpcUnavailable for what is none."""
    number = number_or_none(value)
    if number is None:
        raise RpcUnavailable("the node answered with something that is no number")
    return number


def read_height(answer: Answer) -> int:
    """Return how many blocks there are, of an answer to `getEpochInfo`. Raises: RpcUnavailable.

    Some nodes answer `getBlockHeight` with a slot, which is another number: not every slot has a block.
    """
    if isinstance(answer, RpcError):
        raise RpcUnavailable(f"the node refused a read: {answer.message}") from answer
    return read_number(answer.get("blockHeight") if isinstance(answer, dict) else None)


def read_account(account: Any) -> bytes | None:  # noqa: ANN401 - JSON
    """Return the bytes of an account; None where there is none. Raises: RpcUnavailable."""
    if account is None:
        return None
    try:
        data, encoding = account["data"]
        if encoding == "base64" and isinstance(account["owner"], str):
            return base64.b64decode(data, validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error):
        pass
    raise RpcUnavailable("the node's account cannot be read")


def read_token(account: Any, program: str) -> TokenAccount | None:  # noqa: ANN401 - JSON
    """Return the token account; None where there is none of this program. Raises: RpcUnavailable."""
    data = read_account(account)
    return None if data is None or account["owner"] != program else read_token_account(data)


def read_error(simulation: Answer) -> str | None:
    """Return the error of a simulation as a text; None where it passed. Raises: RpcUnavailable where it was not run."""
    value = read_value(simulation)
    if not isinstance(value, dict) or "err" not in value:
        raise RpcUnavailable("the node did not simulate")
    error = value["err"]
    if error is None or isinstance(error, str):
        return error
    return json.dumps(error, separators=(",", ":"))


def read_sighting(status: Any, deep_enough: Collection[str]) -> Sighting:  # noqa: ANN401 - JSON
    """Return the sighting in a transaction's status; `deep_enough` are the commitments of a success that stands.

    The error is read first: a failed transaction is confirmed like any other. Its failure is proven once it is
    finalized: on another branch the same transaction may pass. Raises: RpcUnavailable.
    """
    if status is None:
        return NOTHING_SEEN
    try:
        confirmed, slot, error = status["confirmationStatus"], status["slot"], status["err"]
    except (KeyError, TypeError) as failure:
        raise RpcUnavailable("the node's status of a transaction cannot be read") from failure
    if not isinstance(confirmed, str | None):
        raise RpcUnavailable("the node's status of a transaction names no commitment")
    if error is not None:
        return Sighting(Verdict.REVERTED, confirmed == FINAL, read_number(slot))
    return Sighting(Verdict.TRANSFERRED, confirmed in deep_enough, read_number(slot))
