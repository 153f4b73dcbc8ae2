"""Can `default_payment_address` be paid? What saving a gate would say of it, for `config check` (contract 3.1).

What no gate could be saved with is an error; what its owner would be warned of is a warning. Nodes are asked where one
is set and what a wallet holds lies in accounts of their own; one that does not answer is said so, and nothing else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.paygates.fields import Recipient
from tollkeeper.core.paygates.model import check_payment_address
from tollkeeper.core.wallets import family_of, parse_wallet
from tollkeeper.gateway.evidence.token_accounts import AccountChain, TokenAccounts
from tollkeeper.serving.config.findings import Findings
from tollkeeper.serving.nodes import chain_of
from tollkeeper.settings.model import SettingProblem

if TYPE_CHECKING:
    from tollkeeper.core.networks import Family
    from tollkeeper.gateway.evidence.nodes import AnyChain
    from tollkeeper.settings.model import NetworkSettings, Settings

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
        if not isinstance(chain, AccountChain):
            await chain.close()
            continue
        asset, name = chain.configured_asset, network.network.name
        accounts = TokenAccounts({name: chain} if network.rpc_urls else {})
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
    """Why no node said anything of a wallet, and what to do."""
    if not network.rpc_urls:
        return "is set", "name one"
    if chain.is_refused:
        return f"can be used ({chain.problem})", "name one that is of it"
    return "answers", "check again when one does"
