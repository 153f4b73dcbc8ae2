"""Test wallets, for the sandbox and tests only.

Their keys follow from words that everyone can read here: whatever they hold on a real network is anybody's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tollkeeper.core.evm import address_of_key, keccak256

PUBLIC_SEED: Final = "tollkeeper sandbox: these keys are public and worthless"


@dataclass(frozen=True, slots=True)
class TestWallet:
    """A key pair with a role. `address` is lower-case hex."""

    __test__ = False  # the name is the field's word; pytest must not collect it

    role: str
    private_key: bytes = field(repr=False)
    address: str

    @property
    def private_key_hex(self) -> str:
        """The key as other tools take it."""
        return "0x" + self.private_key.hex()


def derive_wallet(role: str, *, seed: str = PUBLIC_SEED) -> TestWallet:
    """The wallet of a role: always the same for the same seed."""
    private_key = keccak256(f"{seed}/{role}".encode())
    return TestWallet(role, private_key, address_of_key(private_key))


@dataclass(frozen=True, slots=True)
class TestWallets:
    """Everyone in the play. `relayer` pays gas for the hub, `owner` sells, both buyers hold USDC, `faucet` mints."""

    __test__ = False

    relayer: TestWallet
    owner: TestWallet
    buyer: TestWallet
    second_buyer: TestWallet
    faucet: TestWallet


def derive_wallets(*, seed: str = PUBLIC_SEED) -> TestWallets:
    """All roles from one seed; pass a random seed where the keys should be nobody else's."""
    roles = ("relayer", "owner", "buyer", "second buyer", "faucet")
    return TestWallets(*(derive_wallet(role, seed=seed) for role in roles))
