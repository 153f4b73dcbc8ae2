"""Our batcher as code: what it is made of, what its code must hash to, and where CREATE2 puts it (contract 5.2)."""

from __future__ import annotations

from functools import cache
from typing import Final

from tollkeeper.chains.artifacts import Artifact, load_artifact
from tollkeeper.core.batches import create2_address
from tollkeeper.core.evm import keccak256

# Nothing about the place depends on who deploys: everybody's batcher of this version is the same one.
DEPLOYMENT_SALT: Final = bytes(32)


def batcher_artifact() -> Artifact:
    """The compiled contract."""
    return load_artifact("SettlementBatcher")


@cache
def batcher_code_hash() -> str:
    """What the code at a batcher's address must hash to, 0x hex."""
    return "0x" + keccak256(batcher_artifact().runtime).hex()


@cache
def batcher_address() -> str:
    """Where the deterministic deployer puts it on every network."""
    return create2_address(DEPLOYMENT_SALT, batcher_artifact().creation)
