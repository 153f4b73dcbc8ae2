"""One network behind its nodes, as far as both families are the same (contract 5; security A-15, F4, F9).

Which nodes may be asked, whether the network may be used with them, and a signed transaction on its way. What a node
must be, and how it is asked, is the family's: `evm.chain`, `solana.chain`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import structlog

from tollkeeper.chains.replies import RpcError, RpcUnavailable
from tollkeeper.chains.rpc import Rpc
from tollkeeper.chains.sightings import Submission
from tollkeeper.chains.watcher import Rebroadcast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tollkeeper.chains.replies import Answer
    from tollkeeper.chains.rpc import Call
    from tollkeeper.core.networks import Network

_LOG: Final = structlog.get_logger("tollkeeper.chains")
# Why a network is not enabled while its signers are made ready.
_NOT_PREPARED: Final = "its signers' nonces are not known yet"

AssetT = TypeVar("AssetT")


class NetworkBehindNodes(ABC, Generic[AssetT]):
    """One network. `asset` is None until `open` succeeded; then `problem` says why not."""

    def __init__(self, network: Network, rpc_urls: Sequence[str], timeout_seconds: float) -> None:
        self.network = network
        self.asset: AssetT | None = None
        self.problem = "the node was not asked yet"
        self.is_refused = False  # the node answers, but this network must not be used with it
        self.rpc = Rpc(rpc_urls, timeout_seconds=timeout_seconds)
        self._rebroadcast = Rebroadcast(network.name, self._shows, self.submit_to_all)

    @abstractmethod
    def _identity(self) -> list[Call]:
        """Return the reads that show who a node is; the last one asks for its height."""

    @abstractmethod
    def _judge(self, answers: Sequence[Answer]) -> AssetT | str:
        """Return the asset as a node shows it; the reason where it must not be asked. Raises: RpcUnavailable."""

    @abstractmethod
    def _height(self, answer: Answer) -> int | None:
        """Return the height that a node names; None where it does not."""

    @abstractmethod
    async def _shows(self, name: str) -> bool:
        """Ask whether a transaction that was sent is shown. Raises: RpcUnavailable."""

    @abstractmethod
    async def submit_to_all(self, raw: bytes, name: str) -> Submission:
        """Hand a signed transaction to every node that does not rest: one may take it and pass it on to nobody."""

    @property
    def limits(self) -> list[str]:
        """Limits of the nodes that were learned."""
        return self.rpc.nodes.limits

    async def open(self, prepare: Callable[[], Awaitable[None]] | None = None) -> None:
        """Ask every node who it is; enable the network, or disable it and say why in `problem`.

        To be done again from time to time: nodes come, go and fall behind, and a token may be replaced. One of another
        chain or token is not asked again until it is right. `prepare` is awaited before a network is enabled that was
        not. Raises: RpcUnavailable where nothing could be learned; the network stays as it was; what `prepare` raises.
        """
        found: AssetT | None = None
        silent: RpcUnavailable | None = None
        for node, answers in await self.rpc.probe(self._identity()):
            if isinstance(answers, RpcUnavailable):
                silent = answers
                continue
            try:
                judged = self._judge(answers)
            except RpcUnavailable as error:
                silent = error
                continue
            if isinstance(judged, str):
                node.judged(self.network.name, judged)
            else:
                found = found or judged
                node.judged(self.network.name, "")
            node.height = self._height(answers[-1])
        self.rpc.nodes.compare_heights()
        if found is not None:
            if self.asset is None and prepare is not None:
                self.problem, self.is_refused = _NOT_PREPARED, False
                await prepare()
            self.asset = self.asset if self.asset == found else found
            self.problem, self.is_refused = "", False
        elif silent is not None:
            raise silent
        else:
            self._refuse(self.rpc.nodes.all[0].barred)

    def _refuse(self, problem: str) -> None:
        if not self.is_refused or problem != self.problem:
            _LOG.error("network_disabled", network=self.network.name, reason=problem)
        self.asset, self.problem, self.is_refused = None, problem, True

    def require_asset(self) -> AssetT:
        """Return the asset. Raises: RpcUnavailable where the node has not said who it is, or is the wrong one."""
        if self.asset is None:
            raise RpcUnavailable(self.problem)
        return self.asset

    async def _taken(self, sending: Awaitable[str], name: str) -> Submission | None:
        """Return what a node says of a transaction that is sent to it; None for what sounds like a refusal.

        "Already known" and "nonce too low" do, so a refusal is looked up by the transaction's name: it is no failure.
        """
        about = {"network": self.network.name, "transaction": name}
        try:
            if await sending == name:
                return Submission.TAKEN
            _LOG.error("node_named_another_hash", **about)
        except RpcUnavailable as error:
            _LOG.warning("send_unclear", **about, reason=str(error))
            return Submission.UNCLEAR
        except RpcError as error:
            _LOG.warning("send_refused", **about, reason=error.message)
        return None

    async def close(self) -> None:
        """End what is sent again, and the connections."""
        await self._rebroadcast.close()
        await self.rpc.close()
