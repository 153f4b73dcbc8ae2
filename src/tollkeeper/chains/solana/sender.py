"""Handing signed transactions to a Solana network's nodes (contract 5.2; security F4, F9).

Whoever has a signed transaction can have it executed once at most, so it may be handed over as often as one likes, and
to whom one likes. Nothing that a node says of it is a failure. It goes to one node first, and where that one does not
show it soon, to all (`chains.evm.rebroadcast`).
"""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.chains.evm.chain import Submission
from tollkeeper.chains.evm.receipts import Verdict
from tollkeeper.chains.rpc import RpcError, RpcUnavailable

if TYPE_CHECKING:
    from tollkeeper.chains.nodes import Node
    from tollkeeper.chains.rpc import Call
    from tollkeeper.chains.solana.chain import SolanaChain

_LOG = structlog.get_logger("tollkeeper.chains.solana")
_HOW: Final = {"encoding": "base64", "skipPreflight": True, "preflightCommitment": "confirmed"}


async def submit(chain: SolanaChain, raw: bytes, signature: str) -> Submission:
    """Hands a signed transaction to the node.

    What sounds like a refusal is looked up by the signature; it is never a failure.
    """
    about = {"network": chain.network.name, "transaction": signature}
    try:
        named = await chain.rpc.send_together(*_sending(raw))
        if named == signature:
            return Submission.TAKEN
        _LOG.error("node_named_another_hash", **about)
    except RpcUnavailable as error:
        _LOG.warning("send_unclear", **about, reason=str(error))
        return Submission.UNCLEAR
    except RpcError as error:
        _LOG.warning("send_refused", **about, reason=error.message)
    return await _shown_as_taken(chain, signature)


async def submit_to_all(chain: SolanaChain, raw: bytes, signature: str) -> Submission:
    """The same to every node that does not rest: one that takes a transaction may pass it on to nobody."""
    nodes = chain.rpc.nodes.well(asyncio.get_running_loop().time())
    if len(nodes) <= 1:
        return await submit(chain, raw, signature)
    told = await asyncio.gather(*(_handed_to(chain, node, raw) for node in nodes))
    return Submission.TAKEN if signature in told else await _shown_as_taken(chain, signature)


async def _handed_to(chain: SolanaChain, node: Node, raw: bytes) -> str:
    """Return the signature that the node names; "" if it refuses or does not answer."""
    try:
        (answer,) = await chain.rpc.ask_of(node, [_sending(raw)])
    except RpcUnavailable:
        return ""
    return answer if isinstance(answer, str) else ""


async def _shown_as_taken(chain: SolanaChain, signature: str) -> Submission:
    try:
        (sighting,) = await chain.see([signature])
    except RpcUnavailable:
        return Submission.UNCLEAR
    return Submission.UNCLEAR if sighting.verdict in {Verdict.ABSENT, Verdict.DOUBTED} else Submission.TAKEN


def _sending(raw: bytes) -> Call:
    return "sendTransaction", [base64.b64encode(raw).decode(), _HOW]
