"""Balances of a wallet on a network, as one node tells them."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tollkeeper.client.requests import RefusedError, ask, open_session
from tollkeeper.core.evm.encoding import balance_of_calldata
from tollkeeper.core.networks import Family, Network
from tollkeeper.core.solana.programs import associated_token_account
from tollkeeper.core.usdc import format_usdc

if TYPE_CHECKING:
    import aiohttp


async def balances_of(holder: str, network: Network, rpc_url: str) -> dict[str, str]:
    """Return the wallet's USDC, and the money that pays fees there. Raises: RefusedError."""
    async with open_session() as session:
        if network.family is Family.SOLANA:
            return await _on_solana(session, holder, network, rpc_url)
        return await _on_evm(session, holder, network, rpc_url)


async def _on_evm(session: aiohttp.ClientSession, holder: str, network: Network, rpc_url: str) -> dict[str, str]:
    call = {"to": network.usdc.address, "data": "0x" + balance_of_calldata(holder).hex()}
    chain_id = _number(await _result(session, rpc_url, "eth_chainId"), rpc_url)
    if chain_id != network.chain_id:
        raise RefusedError(f"{rpc_url} is a node of chain {chain_id}, and {network.name} is chain {network.chain_id}")
    usdc = _number(await _result(session, rpc_url, "eth_call", call, "latest"), rpc_url)
    wei = _number(await _result(session, rpc_url, "eth_getBalance", holder, "latest"), rpc_url)
    return {"USDC": format_usdc(usdc), "ETH": _decimal(wei, 18)}


async def _on_solana(session: aiohttp.ClientSession, holder: str, network: Network, rpc_url: str) -> dict[str, str]:
    genesis = await _result(session, rpc_url, "getGenesisHash")
    if genesis != network.genesis_hash:
        raise RefusedError(f"{rpc_url} is no node of {network.name}")
    account = associated_token_account(holder, network.usdc.address)
    there = await _result(session, rpc_url, "getAccountInfo", account, {"encoding": "base64"})
    lamports = await _result(session, rpc_url, "getBalance", holder)
    try:
        held = 0
        if there["value"] is not None:
            held = int((await _result(session, rpc_url, "getTokenAccountBalance", account))["value"]["amount"])
        return {"USDC": format_usdc(held), "SOL": _decimal(int(lamports["value"]), 9)}
    except (KeyError, TypeError, ValueError):
        raise RefusedError(f"{rpc_url} does not answer as a node of Solana does") from None


async def _result(session: aiohttp.ClientSession, rpc_url: str, method: str, *params: object) -> Any:  # noqa: ANN401 - JSON
    answer = await ask(
        session, "POST", rpc_url, json={"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
    )
    if "result" not in answer:
        raise RefusedError(f"{rpc_url} does not answer {method}: is it a node's URL?")
    return answer["result"]


def _number(told: object, rpc_url: str) -> int:
    try:
        return int(str(told), 16)
    except ValueError:
        raise RefusedError(f"{rpc_url} does not tell a number: is there a token at this address?") from None


def _decimal(units: int, decimals: int) -> str:
    """Return an amount in whole coins, without an exponent."""
    text = f"{Decimal(units).scaleb(-decimals):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
