"""The login text names a chain that the program is on (contract 6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from solders.keypair import Keypair

from tests.gateway.composed import composed
from tollkeeper.core.networks import NETWORKS
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.settings.model import NetworkSettings

NODE_THAT_IS_DOWN = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("names", "evm", "solana"),
    [
        (["solana-devnet"], "84532", "devnet"),
        (["solana-mainnet", "base"], "8453", "mainnet"),
        (["base-sepolia", "solana-devnet"], "84532", "devnet"),
    ],
)
async def test_a_wallet_is_shown_a_network_that_it_can_pay_on(
    tmp_path: Path, names: list[str], evm: str, solana: str
) -> None:
    networks = {name: NetworkSettings(NETWORKS[name], (NODE_THAT_IS_DOWN,)) for name in names}
    settings: dict[str, Any] = {
        "networks": networks,
        "default_network": NETWORKS[names[0]],
        "default_payment_address": None,
    }
    async with composed("", tmp_path / "main.db", **settings) as url, aiohttp.ClientSession() as http:
        for part in ("", "/hub"):
            for wallet, chain in ((derive_wallets().buyer.address, evm), (str(Keypair().pubkey()), solana)):
                async with http.get(f"{url}{part}/api/v1/auth/message?walletAddress={wallet}") as answer:
                    assert f"\nChain ID: {chain}\n" in (await answer.json())["message"]
