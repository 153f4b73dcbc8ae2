"""Wallets that are not deployed yet: the factory that makes them, and payments that they sign (ERC-6492)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.chains import batching
from tests.chains.abi import encode_call
from tollkeeper.chains.evm.batcher import load_artifact
from tollkeeper.core.evm.batches import Via
from tollkeeper.core.evm.counterfactual import WalletDeployment, wrap
from tollkeeper.core.evm.encoding import ZERO_ADDRESS, Authorization

if TYPE_CHECKING:
    from tests.chains.chain_under_test import ChainUnderTest

FACTORY: Final = "0x" + "fac7" * 10
OTHER_FACTORY: Final = "0x" + "fac8" * 10


def plant_factory(chain: ChainUnderTest, address: str = FACTORY) -> None:
    """The factory, and Multicall3, which calls it. Any node with anvil's methods takes them."""
    batching.plant(chain, Via.MULTICALL)
    chain.rpc.call("anvil_setCode", address, "0x" + load_artifact("SmartTestWalletFactory").runtime.hex())


@dataclass(frozen=True)
class FutureWallet:
    """A wallet of the buyer's, or of `owner`, that the factory would make."""

    chain: ChainUnderTest
    salt: int = 0
    factory: str = FACTORY
    owner: str = ""

    @property
    def _owner(self) -> str:
        return self.owner or self.chain.wallets.buyer.address

    @property
    def address(self) -> str:
        """Where it will be."""
        data = encode_call("getAddress(address,uint256)", self._owner, self.salt)
        return "0x" + self.chain.simulate(data, to=self.factory)[12:].hex()

    @property
    def is_deployed(self) -> bool:
        """Is it there?"""
        return bool(self.chain.rpc.call("eth_getCode", self.address, "latest") != "0x")

    def deployment(self, target: str = ZERO_ADDRESS, call: bytes = b"") -> bytes:
        """The call of the factory that deploys it, and then has the factory make that call."""
        signature = "createAccount(address,uint256,address,bytes)"
        return encode_call(signature, self._owner, self.salt, target, call)

    def deploy(self) -> None:
        """Deployed by somebody who is not the hub."""
        receipt = self.chain.send_and_wait(self.chain.wallets.faucet, self.factory, self.deployment(), gas=2_000_000)
        assert receipt["status"] == "0x1"

    def authorization(self, **changes: Any) -> Authorization:
        """It pays the owner of the gate."""
        return self.chain.authorization(payer=self.address, **changes)

    def sign(self, authorization: Authorization, call: bytes | None = None) -> bytes:
        """Its signature, with how it is deployed: as usual, or by `call` of its factory."""
        inner = self.chain.sign(authorization)
        return wrap(WalletDeployment(self.factory, self.deployment() if call is None else call, inner))
