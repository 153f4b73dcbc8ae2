"""The embedded chain as a node: chain, JSON-RPC listener and, where asked for, a block at fixed intervals.

`tollkeeper sandbox` runs it inside its own event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final, Self

from tollkeeper.core.evm.encoding import Transaction, sign_transaction
from tollkeeper.sandbox.evm.chain import BASE_SEPOLIA_CHAIN_ID, EmbeddedChain
from tollkeeper.sandbox.evm.engines import open_engine
from tollkeeper.sandbox.evm.genesis import USDC_ADDRESS, sandbox_genesis
from tollkeeper.sandbox.evm.rpc import evm_rpc_app
from tollkeeper.sandbox.rpc_server import RpcServer
from tollkeeper.sandbox.wallets import derive_wallets

if TYPE_CHECKING:
    from types import TracebackType

    from tollkeeper.sandbox.evm.engine import EngineName
    from tollkeeper.sandbox.wallets import TestWallets

_MINT_GAS: Final = 150_000


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class EvmNode:
    """`async with EvmNode() as node:` serves the chain at `node.url` until the block ends."""

    def __init__(
        self,
        *,
        engine: EngineName | None = None,
        wallets: TestWallets | None = None,
        port: int = 0,
        block_time_seconds: float | None = None,
    ) -> None:
        """Build the chain; `start` serves it.

        `block_time_seconds` None mines every transaction at once; otherwise a block comes that often, empty or not.
        """
        self.wallets = wallets or derive_wallets()
        self.chain = EmbeddedChain(
            open_engine(BASE_SEPOLIA_CHAIN_ID, engine),
            chain_id=BASE_SEPOLIA_CHAIN_ID,
            genesis=sandbox_genesis(self.wallets),
            clock_ms=_wall_clock_ms,
        )
        self.app = evm_rpc_app(self.chain)
        self.url = ""
        self._server = RpcServer(self.app, port=port)
        self._block_time_seconds = block_time_seconds
        self._miner: asyncio.Task[None] | None = None

    def mint(self, holder: str, amount_micro: int) -> str:
        """Give a holder test USDC, by a transaction of the faucet's. Returns its hash."""
        data = bytes.fromhex("40c10f19") + bytes(12) + bytes.fromhex(holder[2:]) + amount_micro.to_bytes(32, "big")
        raw, _ = sign_transaction(
            Transaction(
                chain_id=self.chain.chain_id,
                nonce=self.chain.next_nonce(self.wallets.faucet.address),
                max_priority_fee_per_gas=0,
                max_fee_per_gas=2 * self.chain.base_fee_per_gas,
                gas=_MINT_GAS,
                to=USDC_ADDRESS,
                value=0,
                data=data,
            ),
            self.wallets.faucet.private_key,
        )
        return self.chain.send_raw(raw)

    async def start(self) -> str:
        """Serve. Returns the URL. Raises: OSError where the port is taken."""
        self.url = await self._server.start()
        if self._block_time_seconds is not None:
            self.chain.automine = False
            self._miner = asyncio.create_task(self._mine_for_ever(self._block_time_seconds))
        return self.url

    async def stop(self) -> None:
        """Stop serving and mining."""
        if self._miner is not None:
            self._miner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._miner
            self._miner = None
        await self._server.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _mine_for_ever(self, block_time_seconds: float) -> None:
        while True:
            await asyncio.sleep(block_time_seconds)
            self.chain.mine()
