"""The embedded chain as a node: chain and JSON-RPC listener.

`tollkeeper sandbox` runs it inside its own event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from tollkeeper.api import clock_ms
from tollkeeper.sandbox.evm.chain import BASE_SEPOLIA_CHAIN_ID, EmbeddedChain
from tollkeeper.sandbox.evm.engines import open_engine
from tollkeeper.sandbox.evm.genesis import sandbox_genesis
from tollkeeper.sandbox.evm.rpc import evm_rpc_app
from tollkeeper.sandbox.rpc_server import RpcServer
from tollkeeper.sandbox.wallets import derive_wallets

if TYPE_CHECKING:
    from types import TracebackType

    from tollkeeper.sandbox.evm.engine import EngineName
    from tollkeeper.sandbox.wallets import TestWallets


class EvmNode:
    """`async with EvmNode() as node:` serves the chain at `node.url` until the block ends."""

    def __init__(
        self,
        *,
        engine: EngineName | None = None,
        wallets: TestWallets | None = None,
        port: int = 0,
    ) -> None:
        """Build the chain; `start` serves it. Every transaction is mined at once."""
        self.wallets = wallets or derive_wallets()
        self.chain = EmbeddedChain(
            open_engine(BASE_SEPOLIA_CHAIN_ID, engine),
            chain_id=BASE_SEPOLIA_CHAIN_ID,
            genesis=sandbox_genesis(self.wallets),
            clock_ms=clock_ms,
        )
        self.app = evm_rpc_app(self.chain)
        self.url = ""
        self._server = RpcServer(self.app, port=port)

    async def start(self) -> str:
        """Serve. Returns the URL. Raises: OSError where the port is taken."""
        self.url = await self._server.start()
        return self.url

    async def stop(self) -> None:
        """Stop serving."""
        await self._server.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
