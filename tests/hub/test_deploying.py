"""What the account that deploys may sign: the creation of the batcher, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tollkeeper.chains.evm.batcher import DEPLOYMENT_SALT, batcher_artifact
from tollkeeper.core.evm.batches import DEPLOYER_ADDRESS
from tollkeeper.core.evm.encoding import Transaction
from tollkeeper.hub.evm.deployment import CREATION, DeploymentPolicy, created_address
from tollkeeper.hub.evm.signer import Signer
from tollkeeper.hub.signer_pool import PolicyError

KEY = bytes(range(1, 33))
POLICY = DeploymentPolicy(84532, 10**10)
BY_DEPLOYER = Transaction(
    84532, 0, 10**6, 10**9, 300_000, DEPLOYER_ADDRESS, 0, DEPLOYMENT_SALT + batcher_artifact().creation
)
BY_ITSELF = replace(BY_DEPLOYER, to=CREATION, data=batcher_artifact().creation)


@pytest.mark.parametrize("transaction", [BY_DEPLOYER, BY_ITSELF])
def test_the_creation_of_the_batcher_is_signed(transaction: Transaction) -> None:
    assert Signer(KEY).sign(transaction, POLICY)[0][0] == 2


@pytest.mark.parametrize(
    "transaction",
    [
        replace(BY_DEPLOYER, chain_id=1),
        replace(BY_DEPLOYER, value=1),
        replace(BY_DEPLOYER, gas=300_001),
        replace(BY_DEPLOYER, gas=0),
        replace(BY_DEPLOYER, max_fee_per_gas=10**10 + 1),
        replace(BY_DEPLOYER, max_priority_fee_per_gas=10**9 + 1),
        replace(BY_DEPLOYER, data=BY_ITSELF.data),
        replace(BY_DEPLOYER, data=bytes(31) + b"\1" + BY_ITSELF.data),
        replace(BY_DEPLOYER, to="0x" + "44" * 20),
        replace(BY_ITSELF, data=BY_DEPLOYER.data),
        replace(BY_ITSELF, data=b""),
        replace(BY_ITSELF, data=BY_ITSELF.data + b"\0"),
    ],
)
def test_anything_else_is_refused(transaction: Transaction) -> None:
    with pytest.raises(PolicyError):
        Signer(KEY).sign(transaction, POLICY)


def test_a_created_contracts_address_is_the_known_one() -> None:
    """An example that is passed around with the formula."""
    creator = "0x6ac7ea33f8831ea9dcc53393aaa88b25a785dbf0"
    assert created_address(creator, 0) == "0xcd234a471b72ba2f1ccf0a70fcaba648a5eecd8d"
    assert created_address(creator, 1) == "0x343c43a37d37dff08ae8c4a11544c718abb4fcf8"
