"""The embedded chain as a node: chain and JSON-RPC listener.

`tollkeeper sandbox` runs it inside its own event loop.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Final

from tollkeeper.api import clock_ms
from tollkeeper.chains.evm.batcher import load_artifact
from tollkeeper.core.evm.encoding import keccak256
from tollkeeper.core.networks import NETWORKS
from tollkeeper.sandbox.evm.chain import BASE_SEPOLIA_CHAIN_ID, EmbeddedChain
from tollkeeper.sandbox.evm.engine import EngineAccount, EngineName, GenesisAccount
from tollkeeper.sandbox.evm.rpc import evm_rpc_app
from tollkeeper.sandbox.rpc_server import RpcServer
from tollkeeper.sandbox.wallets import derive_wallets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tollkeeper.sandbox.evm.engine import Engine
    from tollkeeper.sandbox.wallets import TestWallets


# The engines that there are, and the choice between them.


def open_engine(chain_id: int, name: EngineName | None = None) -> Engine:
    """An empty world on the engine of that name; by default the fastest that this platform has.

    Raises: ImportError where the engine's library is not installed.
    """
    if name is None:
        name = EngineName.REVM if importlib.util.find_spec("pyrevm") else EngineName.PYEVM
    if name is EngineName.REVM:
        from tollkeeper.sandbox.evm.revm import RevmEngine  # noqa: PLC0415 - exists on some platforms only

        return RevmEngine(chain_id)
    # py-evm and what it imports raise the recursion limit to 100,000, under which nested JSON overflows the C stack.
    recursion_limit = sys.getrecursionlimit()
    from tollkeeper.sandbox.evm.pyevm import PyEvmEngine  # noqa: PLC0415 - takes half a second to import

    sys.setrecursionlimit(recursion_limit)
    return PyEvmEngine(chain_id)


# The sandbox chain's first state: the test token at base-sepolia's canonical USDC address, and funded test wallets.

USDC_ADDRESS: Final = NETWORKS["base-sepolia"].usdc.address
TOKEN_NAME: Final = "USD Coin"  # noqa: S105 - no password; the specification's, so that a client written from it alone pays here
WEI_PER_ETHER: Final = 10**18
RELAYER_BALANCE_WEI: Final = 100 * WEI_PER_ETHER
BUYER_BALANCE_MICRO: Final = 1_000_000_000
_NAME_SLOT: Final = 0
_BALANCES_SLOT: Final = 1
_TOTAL_SUPPLY_SLOT: Final = 2


def sandbox_genesis(wallets: TestWallets) -> dict[str, GenesisAccount]:
    """The token with both buyers' 1,000 USDC; ether for the relayer and the faucet, a little for the others."""
    balances = {wallet.address: BUYER_BALANCE_MICRO for wallet in (wallets.buyer, wallets.second_buyer)}
    genesis = {USDC_ADDRESS: planted_token(balances)}
    for wallet in (wallets.relayer, wallets.faucet):
        genesis[wallet.address] = GenesisAccount(EngineAccount(balance=RELAYER_BALANCE_WEI), {})
    return genesis


def planted_token(balances_micro: Mapping[str, int], *, name: str = TOKEN_NAME) -> GenesisAccount:
    """The test token as an account of the first state. `name` is its EIP-712 name too, at most 31 bytes."""
    storage = {_NAME_SLOT: short_string(name), _TOTAL_SUPPLY_SLOT: sum(balances_micro.values())}
    for holder, balance_micro in balances_micro.items():
        storage[mapping_slot(holder, _BALANCES_SLOT)] = balance_micro
    return GenesisAccount(EngineAccount(nonce=1, code=load_artifact("UsdcTestToken").runtime), storage)


def mapping_slot(address: str, slot: int) -> int:
    """The storage slot of `mapping[address]` for a mapping declared at `slot` (Solidity's layout)."""
    return int.from_bytes(keccak256(bytes(12) + bytes.fromhex(address[2:]) + slot.to_bytes(32, "big")), "big")


def short_string(text: str) -> int:
    """The slot of a string of at most 31 bytes (Solidity's layout). Raises: ValueError where it is longer."""
    encoded = text.encode()
    if len(encoded) > 31:
        raise ValueError("a string in one slot has at most 31 bytes")
    return int.from_bytes(encoded.ljust(31, b"\0") + bytes([2 * len(encoded)]), "big")


class EvmNode(RpcServer):
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
        super().__init__(evm_rpc_app(self.chain).answer_body, port=port)
