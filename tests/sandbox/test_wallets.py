"""The public wallets stay the same, since people write their addresses down."""

from __future__ import annotations

from tollkeeper.core.evm.encoding import address_of_key
from tollkeeper.sandbox.wallets import derive_wallets


def test_public_wallets_never_change() -> None:
    wallets = derive_wallets()
    assert wallets.relayer.address == "0xd6bc9946f70568630cee79ed62348189fccf653e"
    assert wallets.faucet.address == "0x43b9a297fb6e124bf5ad3b333557cfd6261258ee"


def test_roles_have_keys_of_their_own() -> None:
    wallets = derive_wallets()
    everyone = (wallets.relayer, wallets.owner, wallets.buyer, wallets.second_buyer, wallets.faucet)
    assert len({wallet.private_key for wallet in everyone}) == 5
    assert all(address_of_key(wallet.private_key) == wallet.address for wallet in everyone)


def test_another_seed_gives_other_wallets() -> None:
    assert derive_wallets(seed="another").buyer.address != derive_wallets().buyer.address


def test_key_stays_out_of_representations() -> None:
    buyer = derive_wallets().buyer
    assert buyer.private_key_hex not in repr(buyer)
    assert repr(buyer.private_key) not in repr(buyer)
