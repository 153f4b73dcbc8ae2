"""The hub's table of families: what its networks, settlements and keys are made of, one row each (contract 5.2).

The rest of the hub asks here and knows no family. What differs between them is in the files that the rows name.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from tollkeeper.chains.evm.chain import EvmChain, EvmConfig
from tollkeeper.chains.solana import RENT_EXEMPT_LAMPORTS, SolanaChain, SolanaConfig
from tollkeeper.core.keys.keyring import fee_payer_seeds
from tollkeeper.core.limits import PAYER_FAILURES_MAX, PAYER_UNDER_WAY_MAX
from tollkeeper.core.networks import Family
from tollkeeper.hub.accounts import SettlingAccount
from tollkeeper.hub.evm.batch import Company
from tollkeeper.hub.evm.signer import Signer, SignerPolicy
from tollkeeper.hub.evm.signer_balance import Purse
from tollkeeper.hub.evm.signer_pool import Relayer, SignerPool
from tollkeeper.hub.gas import Gas
from tollkeeper.hub.queue import Queue
from tollkeeper.hub.settlement.flow import Settlements
from tollkeeper.hub.settlement.recovery import SettlementRecovery
from tollkeeper.hub.solana.account import SolanaAccount, pool_of
from tollkeeper.hub.solana.fee_payers import FeePayer, FeePayers
from tollkeeper.hub.solana.settlement import SolanaCompleter, SolanaSettlements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tollkeeper.core.x402.verification import Reason
    from tollkeeper.core.x402.version1 import Payment
    from tollkeeper.hub.accounts import AnyAccount
    from tollkeeper.hub.api.gateway_signature import TrustedKeys
    from tollkeeper.hub.metrics import HubMetrics
    from tollkeeper.hub.settlement.orders import Before, Order, SettleOutcome
    from tollkeeper.hub.settlement.outcomes import Records

AnySigner: TypeAlias = Signer | FeePayer
# On Solana what no block takes costs its payer nothing: so many payers it takes, at least, to fill the queue with it.
_PAYERS_OF_A_FULL_QUEUE: Final = 100


@dataclass(frozen=True, slots=True)
class HubNetwork:
    """One network and what signs there, at least one: both of the same family."""

    config: EvmConfig | SolanaConfig
    signers: Sequence[AnySigner]

    @property
    def family(self) -> Family:
        """Family of the account's network."""
        return self.config.network.family


@dataclass(frozen=True, slots=True)
class Around:
    """Parts that all accounts of a hub share. `trusted_keys`: gateways exempt from the strangers' share of the gas."""

    metrics: HubMetrics
    trusted_keys: TrustedKeys
    clock_ms: Callable[[], int]


class HubRow(NamedTuple):
    """`config`: how a network is reached; `signers` of one signing key; `account` of a configuration and signers."""

    config: type[EvmConfig | SolanaConfig]
    signers: Callable[[bytes], Sequence[AnySigner]]
    account: Callable[[Any, Sequence[Any], Around], AnyAccount]
    settlements: type[Settlements]
    completer: type[SettlementRecovery]


def _evm_account(config: EvmConfig, signers: Sequence[Signer], around: Around) -> SettlingAccount:
    name, chain_id = config.network.name, config.network.chain_id
    assert chain_id is not None  # noqa: S101 - an EVM network has one
    company = Company(config)
    relayers = [
        Relayer(
            signer,
            SignerPolicy(
                chain_id=chain_id,
                assets=frozenset({config.asset.lower() or config.network.usdc.address}),
                gas_max=config.gas_limit,
                max_fee_per_gas_max=config.max_fee_per_gas_wei,
                own=signer.address,
                carriers=company.allowed,
                factories=frozenset(config.wallet_factories),
                deploy_gas_max=config.deploy_gas_limit,
            ),
            Purse(name, signer.address, config.gas_limit, around.metrics),
        )
        for signer in signers
    ]
    gas = Gas(name, config.gas_budget_per_hour, "gas_budget_per_hour", around.trusted_keys, around.clock_ms)
    return SettlingAccount(EvmChain(config), SignerPool(relayers), gas, _queue(config, around), company)


def _solana_account(config: SolanaConfig, signers: Sequence[FeePayer], around: Around) -> SolanaAccount:
    name = config.network.name
    fee_payers = FeePayers(signers)

    def purse(address: str) -> Purse:
        return Purse(name, address, config.fee_max_lamports, around.metrics, "lamports", RENT_EXEMPT_LAMPORTS)

    gas = Gas(
        name, config.fee_budget_per_hour_lamports, "fee_budget_per_hour_lamports", around.trusted_keys, around.clock_ms
    )
    share = max(PAYER_FAILURES_MAX, config.settlements_max // _PAYERS_OF_A_FULL_QUEUE)
    queue = _queue(config, around, min(PAYER_UNDER_WAY_MAX, share))
    return SolanaAccount(SolanaChain(config), fee_payers, pool_of(fee_payers, purse), gas, queue)


def _queue(config: EvmConfig | SolanaConfig, around: Around, payer_max: int = PAYER_UNDER_WAY_MAX) -> Queue:
    about = around.trusted_keys, around.metrics, around.clock_ms
    return Queue(config.network.name, config.settlements_max, *about, payer_max=payer_max)


_ROWS: Final[Mapping[Family, HubRow]] = MappingProxyType(
    {
        Family.EVM: HubRow(EvmConfig, lambda key: [Signer(key)], _evm_account, Settlements, SettlementRecovery),
        Family.SOLANA: HubRow(
            SolanaConfig,
            lambda key: [FeePayer(seed) for seed in fee_payer_seeds(key)],
            _solana_account,
            SolanaSettlements,
            SolanaCompleter,
        ),
    }
)


def signers_of(family: Family, keys: Iterable[bytes]) -> list[AnySigner]:
    """Return the signers on the family's networks for a hub with these keys, in their order."""
    return [signer for key in keys for signer in _ROWS[family].signers(key)]


def account_of(network: HubNetwork, around: Around) -> AnyAccount:
    """The network as the endpoints see it.

    Raises: ValueError for signers of which there is none, or one twice, and for another family's configuration.
    """
    row = _ROWS[network.family]
    if not isinstance(network.config, row.config):
        msg = f"{network.config.network.name} is configured as a network of another family"
        raise ValueError(msg)  # noqa: TRY004 - a wrong setting
    return row.account(network.config, network.signers, around)


class Settling:
    """Settles orders of any family."""

    def __init__(self, records: Records, parts: Sequence[Any]) -> None:
        """Takes the parts of `Settlements`."""
        self.records = records
        self._by_family = {family: row.settlements(*parts) for family, row in _ROWS.items()}

    async def settle(self, order: Order) -> SettleOutcome:
        """Settle by `Settlements.settle` of the order's family."""
        return await self._by_family[order.account.chain.network.family].settle(order)

    async def before(self, account: AnyAccount, payment: Payment, reason: Reason) -> Before | None:
        """Answer by `Settlements.before` of the account's family."""
        return await self._by_family[account.chain.network.family].before(account, payment, reason)

    def completers(self, accounts: Mapping[str, AnyAccount], parts: Sequence[Any]) -> dict[Family, SettlementRecovery]:
        """Return the recovery of each family that has accounts; `parts`: `SettlementRecovery`'s, its own first."""
        database, *others = parts
        found = {}
        for family, settlements in self._by_family.items():
            own = {name: account for name, account in accounts.items() if account.chain.network.family is family}
            if own:
                found[family] = _ROWS[family].completer(database, settlements, own, *others)
        return found
