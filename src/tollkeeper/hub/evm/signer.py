"""The hub's own account, which pays the gas, and the policy that bounds what it signs (security A-24, A-26).

The key lives in one object that shows only its address and signs only what the policy allows: a
transferWithAuthorization to an allowed token, alone or behind a call of an allowed factory, a batch of them through a
contract that carries batches, or a transfer of nothing to itself, without value, on one chain, under a gas and a fee
cap. Nonces and sending are not its business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol

from tollkeeper.core.evm.batches import MULTICALL_ADDRESS, batch_gas, decode_batch
from tollkeeper.core.evm.counterfactual import read_settling_call
from tollkeeper.core.evm.encoding import (
    SECP256K1_ORDER,
    Transaction,
    address_of_key,
    read_transfer_calldata,
    sign_transaction,
)
from tollkeeper.hub.signer_pool import PolicyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.chains.evm.batcher import Carrier
    from tollkeeper.chains.evm.chain import Fees
    from tollkeeper.hub.evm.batch import BatchCall


class Policy(Protocol):
    """Policy of what an account may sign."""

    def check(self, transaction: Transaction) -> None:
        """Raises: PolicyError."""


@dataclass(frozen=True, slots=True)
class SignerPolicy:
    """Policy of signing on one network. Fees are wei per gas; `own` is the signer, who may send itself nothing.

    `gas_max` bounds a settlement that goes alone, `deploy_gas_max` what is added for one that deploys its payer's
    wallet by one of `factories`; a batch has exactly the gas that its items come to.
    """

    chain_id: int
    assets: frozenset[str]
    gas_max: int
    max_fee_per_gas_max: int
    own: str = ""
    carriers: tuple[Carrier, ...] = ()
    factories: frozenset[str] = frozenset()
    deploy_gas_max: int = 0

    def check(self, transaction: Transaction) -> None:
        """Raises: PolicyError, naming the rule, for all but the bounded transactions."""
        frees_nonce = bool(self.own) and transaction.to == self.own and not transaction.data
        gas_of_calls = self._gas_of_batch(transaction)
        if gas_of_calls is None and self._deploys(transaction):
            gas_of_calls = self.gas_max + self.deploy_gas_max
        is_known = frees_nonce or gas_of_calls is not None or transaction.to in self.assets
        rules = (
            (transaction.chain_id == self.chain_id, "the chain id"),
            (is_known, "the receiving contract"),
            (transaction.value == 0, "a value above zero"),
            (0 < transaction.gas <= (gas_of_calls or self.gas_max), "the gas limit"),
            (0 <= transaction.max_fee_per_gas <= self.max_fee_per_gas_max, "the fee per gas"),
            (0 <= transaction.max_priority_fee_per_gas <= transaction.max_fee_per_gas, "the tip"),
            (frees_nonce or gas_of_calls is not None or _is_transfer(transaction.data), "the call"),
        )
        for is_kept, name in rules:
            if not is_kept:
                raise PolicyError(f"the signer policy forbids {name} of this transaction")

    def _deploys(self, transaction: Transaction) -> bool:
        """Say whether it is one call of an allowed factory and one transfer of an allowed token, through Multicall3."""
        if transaction.to != MULTICALL_ADDRESS or not self.factories:
            return False
        try:
            factory, asset, transfer = read_settling_call(transaction.data)
        except ValueError:
            return False
        return factory in self.factories and asset in self.assets and _is_transfer(transfer)

    def _gas_of_batch(self, transaction: Transaction) -> int | None:
        """Return the gas of a batch of transfers of an allowed token by an allowed contract; None for anything else."""
        for carrier in self.carriers:
            if transaction.to != carrier.address:
                continue
            try:
                asset, transfers = decode_batch(carrier.via, transaction.data)
            except ValueError:
                continue
            if asset in self.assets:
                return batch_gas(carrier.via, len(transfers))
        return None


def _is_transfer(data: bytes) -> bool:
    """Say whether this is the calldata of one of transferWithAuthorization's two forms, and nothing else."""
    try:
        read_transfer_calldata(data)
    except ValueError:
        return False
    return True


class Signer:
    """One account of the hub's. `address` is lower-case hex; the key cannot be read back, printed or pickled."""

    __slots__ = ("_sign", "address")

    def __init__(self, private_key: bytes) -> None:
        """Take 32 bytes. Raises: ValueError, which does not show them, where they are no key."""
        if len(private_key) != 32 or not 0 < int.from_bytes(private_key, "big") < SECP256K1_ORDER:
            raise ValueError("a signing key is a number of 32 bytes below the order of secp256k1")
        self.address = address_of_key(private_key)
        self._sign: Callable[[Transaction], tuple[bytes, str]] = lambda transaction: sign_transaction(
            transaction, private_key
        )

    def sign(self, transaction: Transaction, policy: Policy) -> tuple[bytes, str]:
        """Return the raw signed transaction and its hash. Raises: PolicyError."""
        policy.check(transaction)
        return self._sign(transaction)

    def __repr__(self) -> str:
        return f"Signer({self.address})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a signer cannot be copied out of its process")


@dataclass(frozen=True, slots=True)
class NetworkSigner:
    """A signer under the policy of one network."""

    signer: Signer
    policy: SignerPolicy

    @property
    def address(self) -> str:
        """Address of the signer's account, in lower-case hex."""
        return self.signer.address

    def sign(self, transaction: Transaction) -> tuple[bytes, str]:
        """Return the raw signed transaction and its hash. Raises: PolicyError."""
        return self.signer.sign(transaction, self.policy)

    def sign_call(self, call: BatchCall, nonce: int, fees: Fees) -> tuple[bytes, str]:
        """Sign a call as the transaction with that nonce. Raises: PolicyError."""
        return self.sign(call.transaction(self.policy.chain_id, nonce, fees))

    def may_sign(self, transaction: Transaction) -> bool:
        """Say whether the policy allows the transaction, as it is configured now."""
        try:
            self.policy.check(transaction)
        except PolicyError:
            return False
        return True
