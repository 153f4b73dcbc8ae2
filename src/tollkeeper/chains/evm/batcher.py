"""The contracts that carry batches: our batcher's code and place, and which of them a network has (contract 5.2).

A contract is used only after the node has shown that its code is the one that this program was written for. Our own
goes before Multicall3, because it bounds what each payer can burn.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from tollkeeper.chains.evm.blocks import data_of
from tollkeeper.chains.replies import Answer
from tollkeeper.chains.rpc import Call
from tollkeeper.core.evm.batches import MULTICALL_ADDRESS, MULTICALL_CODE_HASH, Via, create2_address
from tollkeeper.core.evm.encoding import keccak256

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence


# The compiled contracts that come with the package. `contracts/build.js` writes them; a test compiles them again.


@dataclass(frozen=True, slots=True)
class Artifact:
    """A contract's code: `creation` deploys it, `runtime` is what stands on the chain afterwards."""

    name: str
    compiler: str
    creation: bytes
    runtime: bytes


@cache
def load_artifact(name: str) -> Artifact:
    """Return the artifact of a contract in `contracts/`, such as `UsdcTestToken`."""
    text = files("tollkeeper.chains").joinpath("artifacts", f"{name}.json").read_text("utf-8")
    fields = json.loads(text)
    return Artifact(
        name, fields["compiler"], bytes.fromhex(fields["bytecode"][2:]), bytes.fromhex(fields["runtime"][2:])
    )


# Nothing about the place depends on who deploys: everybody's batcher of this version is the same one.
DEPLOYMENT_SALT: Final = bytes(32)
NO_CODE: Final = b""


@dataclass(frozen=True, slots=True)
class Carrier:
    """A contract that carries batches on one network, and where it is (lower-case hex)."""

    via: Via
    address: str


@cache
def batcher_artifact() -> Artifact:
    """Return the compiled contract."""
    return load_artifact("SettlementBatcher")


@cache
def batcher_code_hash() -> str:
    """Return the hash, 0x hex, that the code at a batcher's address must have."""
    return code_hash(batcher_artifact().runtime)


@cache
def batcher_address() -> str:
    """Return the address at which the deterministic deployer puts the batcher on every network."""
    return create2_address(DEPLOYMENT_SALT, batcher_artifact().creation)


def code_hash(code: bytes) -> str:
    """Keccak-256 as 0x hex."""
    return "0x" + keccak256(code).hex()


def allowed_carriers(batcher: str) -> tuple[Carrier, ...]:
    """Return the contracts that may carry batches, the better first.

    `batcher`: our contract's address, "" for the usual one.
    """
    return (Carrier(Via.BATCHER, batcher or batcher_address()), Carrier(Via.MULTICALL, MULTICALL_ADDRESS))


async def find_carrier(
    ask: Callable[[Sequence[Call]], Awaitable[list[Answer]]], allowed: Sequence[Carrier]
) -> Carrier | None:
    """Return the first of them that has the right code on the chain; None where none has. Raises: RpcUnavailable."""
    codes = await read_codes(ask, [carrier.address for carrier in allowed])
    wanted = {Via.BATCHER: batcher_code_hash(), Via.MULTICALL: MULTICALL_CODE_HASH}
    for carrier, code in zip(allowed, codes, strict=True):
        if code_hash(code) == wanted[carrier.via]:
            return carrier
    return None


async def read_codes(ask: Callable[[Sequence[Call]], Awaitable[list[Answer]]], addresses: Sequence[str]) -> list[bytes]:
    """Return the code of each account as of the latest block, `NO_CODE` for a plain one. Raises: RpcUnavailable."""
    answers = await ask([("eth_getCode", [address, "latest"]) for address in addresses])
    return [data_of(answer) for answer in answers]
