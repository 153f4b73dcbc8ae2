"""Nodes asked for their chain, and a hub's accounts for their money, for `config check` (contract 5.2, 5.3).

A start goes on where a node is another chain's, silent or limited, and where no account can pay, because all of that
may change while it runs; an operator who is about to start wants to know before. Nothing is sent to a chain.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tollkeeper.api import clock_ms
from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.paygates.fields import Recipient
from tollkeeper.core.paygates.model import check_payment_address
from tollkeeper.core.wallets import family_of, parse_wallet, shown_address
from tollkeeper.gateway.evidence.nodes import with_accounts
from tollkeeper.gateway.evidence.token_accounts import TokenAccounts
from tollkeeper.serving.config.findings import Findings
from tollkeeper.serving.nodes import chain_of, config_of
from tollkeeper.settings.model import Role, SettingProblem

if TYPE_CHECKING:
    from tollkeeper.core.networks import Family
    from tollkeeper.gateway.evidence.nodes import AnyChain
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


# Can `default_payment_address` be paid? What saving a gate would say of it, for `config check` (contract 3.1). What no
# gate could be saved with is an error; what its owner would be warned of is a warning. Nodes are asked where one is set
# and what a wallet holds lies in accounts of their own; one that does not answer is said so, and nothing else.

_NAME: Final = "default_payment_address"
_NOBODYS: Final = "it is nobody's who could be paid: a token, a program, or an account of this hub's"


def judge_default_payee(settings: Settings, *, asks: bool = True) -> Findings:
    """Return what is wrong with it, and what is unwise. `asks`: ask nodes too, which takes seconds."""
    found, address = Findings(), settings.default_payment_address
    if address is None:
        return found
    family = family_of(address)
    own = [network for network in settings.networks.values() if network.network.family is family]
    try:
        check_payment_address(address, _any_network(own, family), _never_paid(settings))
    except ApiError:
        found.fail(_NAME, _NOBODYS, "name a wallet of yours")
        return found
    if settings.networks and not own:
        problem = "no network of its kind is set, so no gate is paid to it"
        found.warn(_NAME, problem, "name an address of a network that is, or set another network")
    elif asks:
        asyncio.run(_ask(address, own, settings, found))
    return found


def _any_network(own: list[NetworkSettings], family: Family) -> str:
    """One of the family, of those that are set where one is."""
    named = [network.network.name for network in own]
    return next(iter(named), next(name for name, network in NETWORKS.items() if network.family is family))


def _never_paid(settings: Settings) -> frozenset[str]:
    """The tokens, and what a hub with these keys signs with, as addresses are kept."""
    networks = [network.network for network in settings.networks.values()]
    tokens = {network.usdc.address for network in (*networks, *NETWORKS.values())}
    keys = [key.reveal() for key in settings.signer_keys]
    accounts = {account for row in FAMILIES.values() for key in keys for account in row.fee_accounts(key)}
    return frozenset(map(parse_wallet, tokens | accounts))


async def _ask(address: str, networks: list[NetworkSettings], settings: Settings, found: Findings) -> None:
    for network in networks:
        chain = chain_of(network, settings)
        holders = with_accounts(chain)
        if holders is None:
            await chain.close()
            continue
        asset, name = holders.configured_asset, network.network.name
        accounts = TokenAccounts({name: holders} if network.rpc_urls else {})
        try:
            told = await accounts.warnings([Recipient(name, address)], {name: asset})
            found.warnings += [SettingProblem(_NAME, one["message"]) for one in told]
        except ApiError as refused:
            found.fail(_NAME, refused.message, f"no gate can be paid to it on {name}")
        finally:
            await chain.close()
        if chain.asset is None:
            why, advice = _unknown(chain, network)
            found.warn(_NAME, f"no node of {name} {why}, so whether it can be paid there is not known", advice)


def _unknown(chain: AnyChain, network: NetworkSettings) -> tuple[str, str]:
    """Return why no node said anything of a wallet, and what to do."""
    if not network.rpc_urls:
        return "is set", "name one"
    if chain.is_refused:
        return f"can be used ({chain.problem})", "name one that is of it"
    return "answers", "check again when one does"
