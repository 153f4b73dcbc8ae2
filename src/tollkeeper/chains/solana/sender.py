"""Handing signed transactions to a Solana network's nodes (contract 5.2; security F4, F9).

Whoever has a signed transaction can have it executed once at most, so it may be handed over as often as one likes, and
to whom one likes. Nothing that a node says of it is a failure. It goes to one node first, and where that one does not
show it soon, to all (`chains.watcher`).
"""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.chains.replies import RpcError, RpcUnavailable
from tollkeeper.chains.sightings import Submission, Verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tollkeeper.chains.nodes import Node
    from tollkeeper.chains.rpc import Call, Rpc
    from tollkeeper.chains.sightings import Sighting

_LOG = structlog.get_logger("tollkeeper.chains.solana")
_HOW: Final = {"encoding": "base64", "skipPreflight": True, "preflightCommitment": "confirmed"}


class TransactionSender:
    """Sender on one network. `see` tells what enough nodes show of a transaction, by its signature."""

    def __init__(self, rpc: Rpc, network: str, see: Callable[[Sequence[str]], Awaitable[list[Sighting]]]) -> None:
        self._rpc = rpc
        self._network = network
        self._see = see

    async def submit(self, raw: bytes, signature: str) -> Submission:
        """Hand a signed transaction to the node.

        What sounds like a refusal is looked up by the signature; it is never a failure.
        """
        about = {"network": self._network, "transaction": signature}
        try:
            named = await self._rpc.send_together(*_sending(raw))
            if named == signature:
                return Submission.TAKEN
            _LOG.error("node_named_another_hash", **about)
        except RpcUnavailable as error:
            _LOG.warning("send_unclear", **about, reason=str(error))
            return Submission.UNCLEAR
        except RpcError as error:
            _LOG.warning("send_refused", **about, reason=error.message)
        return await self._shown_as_taken(signature)

    async def submit_to_all(self, raw: bytes, signature: str) -> Submission:
        """Hand it to every node that does not rest: one that takes a transaction may pass it on to nobody."""
        nodes = self._rpc.nodes.well(asyncio.get_running_loop().time())
        if len(nodes) <= 1:
            return await self.submit(raw, signature)
        told = await asyncio.gather(*(self._handed_to(node, raw) for node in nodes))
        return Submission.TAKEN if signature in told else await self._shown_as_taken(signature)

    async def _handed_to(self, node: Node, raw: bytes) -> str:
        """Return the signature that the node names; "" if it refuses or does not answer."""
        try:
            (answer,) = await self._rpc.ask_of(node, [_sending(raw)])
        except RpcUnavailable:
            return ""
        return answer if isinstance(answer, str) else ""

    async def _shown_as_taken(self, signature: str) -> Submission:
        try:
            (sighting,) = await self._see([signature])
        except RpcUnavailable:
            return Submission.UNCLEAR
        return Submission.UNCLEAR if sighting.verdict in {Verdict.ABSENT, Verdict.DOUBTED} else Submission.TAKEN


def _sending(raw: bytes) -> Call:
    return "sendTransaction", [base64.b64encode(raw).decode(), _HOW]
