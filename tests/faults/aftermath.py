"""What every fault test ends with: books in order, books and chain agree in both directions, nobody paid twice.

`paid` is what clients signed, a signature for each thing that they wanted, and were told was settled: our signers
carried each of them out once, and nothing else. `refused` is what they signed and were told was not: no transaction of
our signers carried it out. So whoever signed twice for one thing, or was told wrongly, is seen on the chain.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.books import assert_books_agree, databases_in
from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import finished
from tests.gateway.composed import settings_for
from tests.hub.solana_hub import solana_settings
from tollkeeper.core.evm.encoding import Authorization
from tollkeeper.core.solana.message import read_transaction
from tollkeeper.core.solana.rules import SolanaTransfer
from tollkeeper.core.x402.version1 import EvmPayload, decode_payment_header
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.sandbox.solana.chain import FINAL_SLOTS
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.serving.books.reconciliation import compare_with_chain
from tollkeeper.settings.model import Role

# AuthorizationUsed(address,bytes32) and Transfer(address,address,uint256), not taken from the program.
_USED: Final = "0x98de503528ee59b575ef0c0a2576a82497bfc029a5685b209e9ec333479b10a5"
_TRANSFER: Final = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
# The directories that were looked into: each test of faults asks for that once at least.
CHECKED: Final[set[Path]] = set()


@dataclass(frozen=True)
class Site:
    """A configured program, with the environment that it runs in; the role is `serve`, `gateway` or `hub`."""

    config: Path
    environ: Mapping[str, str]
    role: str = "serve"


async def assert_nothing_lost(
    directory: Path,
    chain: ChainUnderTest,
    *,
    paid: Iterable[Authorization],
    refused: Iterable[Authorization] = (),
    sites: Iterable[Site] = (),
    since_block: int = 0,
    gone: Iterable[str] = (),
) -> None:
    """Holds of every database below the directory, whether its program runs or not, and of the chain since that block.

    A database belongs to one of the sites, or is that of a hub or a gateway alone, `hub.db` or `gateway.db`. Of a
    gateway's sales these are `gone`: each is listed as paid and not on the chain, and nothing else is.
    """
    assert_books_agree(directory)
    left = {path for path in databases_in(directory) if path.parent.name != "backup"}
    for site in sites:
        home = site.config.parent
        since = ("--since-block", str(since_block)) if since_block else ()
        command = ("db", "check", "--chain", *since, "--for", site.role, "--config", site.config)
        checked = await asyncio.to_thread(finished, *command, environ=site.environ)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        left = {path for path in left if home not in path.parents}
    for path in left:
        assert path.name in {"hub.db", "gateway.db", "books.db"}, path
        role = Role.GATEWAY if path.name == "gateway.db" else Role.HUB
        differences = await compare_with_chain(settings_for(chain.url, path, role=role))
        listed = (
            {("paid_but_not_on_the_chain", one) for one in gone} if role is Role.GATEWAY else set[tuple[str, str]]()
        )
        assert {(one.rule, one.subject) for one in differences} == listed, (path, differences)
    await asyncio.to_thread(assert_carried_out, chain, list(paid), list(refused), since_block)
    CHECKED.add(directory)


async def assert_nothing_lost_on_solana(
    directory: Path, node: SolanaNode, *, paid: Iterable[SolanaTransfer], refused: Iterable[SolanaTransfer] = ()
) -> None:
    """The same of programs on the embedded Solana chain: what is on the chain by now is final."""
    assert_books_agree(directory)
    node.chain.next_slot(FINAL_SLOTS + 1)
    for path in databases_in(directory):
        role = Role.GATEWAY if path.name == "gateway.db" else Role.HUB
        assert await compare_with_chain(solana_settings(node.url, path, role)) == []
    wanted = Counter(one.transaction.message.raw for one in paid)
    assert set(wanted.values()) <= {1}
    done = [one for one in node.chain.executed.values() if one.error is None]
    ours = Counter(read_transaction(one.raw).message.raw for one in done)
    assert ours == wanted
    assert not {one.transaction.message.raw for one in refused} & set(ours)
    CHECKED.add(directory)


def authorization_in(header: str) -> Authorization:
    """What the payer of an `X-Payment` signed."""
    payload = decode_payment_header(header.encode()).payload
    assert isinstance(payload, EvmPayload)
    return payload.authorization


def assert_carried_out(
    chain: ChainUnderTest, paid: list[Authorization], refused: list[Authorization], since_block: int
) -> None:
    """Our signers carried out each authorization that was paid once since that block, and none else."""
    ours = transfers_of_signers(chain, since_block)
    wanted = Counter((one.payer.lower(), one.nonce.lower(), one.pay_to.lower(), one.value) for one in paid)
    assert set(wanted.values()) <= {1}
    assert ours == wanted
    assert not {one.nonce.lower() for one in refused} & {nonce for _, nonce, _, _ in ours}


def transfers_of_signers(chain: ChainUnderTest, since_block: int) -> Counter[tuple[str, str, str, int]]:
    """Payer, nonce, payee and value of everything that the relayer carried out, as the token's events say.

    The token emits AuthorizationUsed and then, of the same payment, Transfer.
    """
    found: Counter[tuple[str, str, str, int]] = Counter()
    asked = {
        "address": USDC_ADDRESS,
        "fromBlock": hex(since_block),
        "toBlock": "latest",
        "topics": [[_USED, _TRANSFER]],
    }
    used: dict[str, Any] = {}
    senders: dict[str, str] = {}
    for log in chain.rpc.call("eth_getLogs", asked):
        name = log["transactionHash"]
        if log["topics"][0] == _USED:
            used = log
        elif used and used["transactionHash"] == name and int(used["logIndex"], 16) == int(log["logIndex"], 16) - 1:
            if name not in senders:
                senders[name] = chain.rpc.call("eth_getTransactionByHash", name)["from"].lower()
            if senders[name] == chain.wallets.relayer.address.lower():
                _, payer, payee = log["topics"]
                assert used["topics"][1] == payer
                found["0x" + payer[-40:], used["topics"][2], "0x" + payee[-40:], int(log["data"], 16)] += 1
    return found
