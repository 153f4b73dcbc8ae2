"""Test wallets, for the sandbox and tests only.

Their keys follow from words that everyone can read here: whatever they hold on a real network is anybody's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tollkeeper.core.evm.encoding import address_of_key, keccak256
from tollkeeper.core.keys.keyring import fee_payer_seeds
from tollkeeper.core.keys.wallet_keys import WalletKey
from tollkeeper.core.networks import Family
from tollkeeper.core.solana.base58 import encode
from tollkeeper.core.solana.ed25519 import public_key

PUBLIC_SEED: Final = "tollkeeper sandbox: these keys are public and worthless"


@dataclass(frozen=True, slots=True)
class TestWallet:
    """A key pair with a role. `address` is lower-case hex."""

    __test__ = False  # the name is the field's word; pytest must not collect it

    role: str
    private_key: bytes = field(repr=False)
    address: str

    @property
    def key(self) -> WalletKey:
        """Key that the wallet's owner signs with."""
        return WalletKey(Family.EVM, self.private_key)

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


@dataclass(frozen=True, slots=True)
class SolanaWallet:
    """An Ed25519 key pair with a role. `address` is base58, `seed` what the key follows from."""

    role: str
    seed: bytes = field(repr=False)
    address: str

    @property
    def key(self) -> WalletKey:
        """Key that the wallet's owner signs with."""
        return WalletKey(Family.SOLANA, self.seed)

    @property
    def secret_key(self) -> str:
        """Seed and public key in base58, as Solana's tools take it."""
        return encode(self.seed + public_key(self.seed))


def derive_solana_wallet(role: str, *, seed: str = PUBLIC_SEED) -> SolanaWallet:
    """The Solana wallet of a role: always the same for the same seed."""
    key = keccak256(f"{seed}/solana/{role}".encode())
    return SolanaWallet(role, key, encode(public_key(key)))


@dataclass(frozen=True, slots=True)
class SolanaWallets:
    """Everyone in the play on Solana. The hub's `fee_payers` pay fees, `owner` sells, both buyers hold USDC."""

    fee_payers: tuple[SolanaWallet, ...]
    owner: SolanaWallet
    buyer: SolanaWallet
    second_buyer: SolanaWallet


def derive_solana_wallets(*, seed: str = PUBLIC_SEED) -> SolanaWallets:
    """All Solana roles from one seed."""
    relayer = derive_wallet("relayer", seed=seed)
    owner, buyer, second_buyer = (derive_solana_wallet(role, seed=seed) for role in ("owner", "buyer", "second buyer"))
    return SolanaWallets(fee_payers_of(relayer.private_key), owner, buyer, second_buyer)


def fee_payers_of(signer_key: bytes) -> tuple[SolanaWallet, ...]:
    """The fee payers of a hub with this signing key."""
    return tuple(SolanaWallet("fee payer", key, encode(public_key(key))) for key in fee_payer_seeds(signer_key))


def buyer_keys() -> tuple[WalletKey, ...]:
    """The public test buyer's, one of each family."""
    return derive_wallets().buyer.key, derive_solana_wallets().buyer.key
