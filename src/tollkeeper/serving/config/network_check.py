"""Nodes asked for their chain, and a hub's accounts for their money, for `config check` (contract 5.2, 5.3).

A start goes on where a node is another chain's, silent or limited, and where no account can pay, because all of that
may change while it runs; an operator who is about to start wants to know before. Nothing is sent to a chain.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tollkeeper.api import clock_ms
from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.core.wallets import shown_address
from tollkeeper.serving.config.findings import Findings
from tollkeeper.serving.nodes import chain_of, config_of
from tollkeeper.settings.model import Role, SettingProblem

if TYPE_CHECKING:
    from tollkeeper.hub.families import AnyAccount
    from tollkeeper.hub.signer_pool import SignerBalance
    from tollkeeper.settings.model import NetworkSettings, Settings

# A node has ten seconds for each question, and an account is a few questions in a row.
_NETWORK_SECONDS: Final = 30.0


def check_networks(settings: Settings) -> Findings:
    """Ask the nodes of every network that has any. Waits for them for half a minute at most."""
    return asyncio.run(_check_all(settings))


async def _check_all(settings: Settings) -> Findings:
    networks = [network for network in settings.networks.values() if network.rpc_urls]
    found = Findings()
    for one in await asyncio.gather(*(_check(network, settings) for network in networks)):
        found.add(one)
    return found


async def _check(network: NetworkSettings, settings: Settings) -> Findings:
    report = Findings()
    account = None if settings.role is Role.GATEWAY else _account(network, settings)
    chain = chain_of(network, settings) if account is None else account.chain
    name = f"networks.{network.network.name}.rpc_url"
    try:
        async with asyncio.timeout(_NETWORK_SECONDS):
            await chain.open()
            if account is not None and chain.asset is not None:
                await account.look_around()
                await account.see_money()
    except RpcUnavailable as error:
        report.warn(name, f"no node answers ({error})", "check again when one does")
    except TimeoutError:
        report.warn(name, f"not all was answered in {_NETWORK_SECONDS:.0f} s", "check again")
    finally:
        await chain.close()
    nodes = chain.rpc.nodes.all
    for node in nodes:
        tell = report.fail if chain.is_refused else report.warn
        if node.barred:
            tell(name, f"node {node.position} is not used: {node.barred}", "name one that is of it")
        elif node.failures and not all(one.failures for one in nodes):
            tell(name, f"node {node.position} does not answer", "check again when it does")
    if chain.asset is not None:
        answering = sum(not node.barred and not node.failures for node in nodes)
        report.values.append((f"networks.{network.network.name}.nodes", f"{answering} of {len(nodes)} answer"))
    obstacles = chain.limits if account is None else account.obstacles
    report.warnings += [SettingProblem(name, obstacle) for obstacle in obstacles]
    if account is not None:
        for relayer in account.signers.relayers:
            _judge_money(report, relayer.balance)
    return report


def _account(network: NetworkSettings, settings: Settings) -> AnyAccount | None:
    """Return the hub's account on that network; None where the settings lack a usable key, which is told elsewhere."""
    from tollkeeper.hub.api.gateway_signature import TrustedKeys  # noqa: PLC0415 - as above
    from tollkeeper.hub.families import HubContext, HubNetwork, account_of, signers_of  # noqa: PLC0415 - no gateway has it
    from tollkeeper.hub.metrics import HubMetrics  # noqa: PLC0415 - as above

    signers = signers_of(network.network.family, [key.reveal() for key in settings.signer_keys])
    if not signers:
        return None
    context = HubContext(HubMetrics(), TrustedKeys(), clock_ms)
    return account_of(HubNetwork(config_of(network, settings), signers), context)


def _judge_money(report: Findings, balance: SignerBalance) -> None:
    """Add for how many settlements a signer's money lasts; nothing where no node said."""
    if balance.affordable is None:
        return
    name = f"networks.{balance.network}.signer"
    lasts = (
        f"{shown_address(balance.address)} has money for {balance.affordable:,} settlements at the fees of the moment"
    )
    if balance.is_low:
        report.warn(name, lasts, "fund it: without money nothing is settled there")
    else:
        report.values.append((name, lasts))
