"""Readers of the answers to contract calls: a string, a wallet's yes, the reason of a revert (security A-15, A-22).

A call that a node did not run has no answer. Conclusions are drawn elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tollkeeper.chains.evm.blocks import data_of
from tollkeeper.chains.replies import RpcError, RpcUnavailable
from tollkeeper.core.evm import encoding as evm
from tollkeeper.core.evm.counterfactual import acceptance_answer

if TYPE_CHECKING:
    from tollkeeper.chains.replies import Answer

_ERROR_SELECTOR: Final = bytes.fromhex("08c379a0")
# How nodes name an execution that ended without a revert (go-ethereum's and anvil's words). A contract wallet can bring
# any of them about, so none may look like a node that does not answer.
_HALTS: Final = ("gas", "opcode", "stack", "jump", "write protection", "return data", "evm error")


def text_of(answer: Answer) -> str:
    """Return a string; empty for anything else."""
    try:
        return "" if isinstance(answer, RpcError) else evm.decode_string(data_of(answer))
    except ValueError:
        return ""


def accepts_signature(answer: Answer) -> bool:
    """Read a wallet's yes to a signature. Raises: RpcUnavailable where the node did not run the call."""
    return revert_of(answer) is None and evm.is_wallet_acceptance(data_of(answer))


def accepts_once_deployed(answer: Answer) -> bool:
    """The same of a wallet that was deployed for the question. Raises: RpcUnavailable, as `accepts_signature`."""
    if revert_of(answer) is not None:
        return False
    try:
        return evm.is_wallet_acceptance(acceptance_answer(data_of(answer)))
    except ValueError:
        return False


def revert_of(answer: Answer) -> str | None:
    """Read why an eth_call reverted; None where it passed. Raises: RpcUnavailable where the node did not run it."""
    if not isinstance(answer, RpcError):
        data_of(answer)
        return None
    data = answer.data if isinstance(answer.data, str) else ""
    if answer.code != 3 and "revert" not in answer.message.lower() and not data.startswith("0x"):
        if any(word in answer.message.lower() for word in _HALTS):
            return answer.message
        raise RpcUnavailable(f"the node could not simulate: {answer.message}")
    try:
        raw = bytes.fromhex(data[2:])
        if raw[:4] == _ERROR_SELECTOR:
            return evm.decode_string(raw[4:])
    except ValueError:
        pass
    return answer.message or "execution reverted"
