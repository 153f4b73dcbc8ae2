"""A Solana network behind its node, on the embedded chain and behind nodes that lie (specification 2.3; A-15, F4)."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from solders.hash import Hash
from solders.token.state import Mint

from tests.chains.solana_node import BUYER, FEE_PAYER, SECOND_BUYER, WALLETS, drafted, paying
from tests.core.solana_payments import account_of, compute_limit, compute_price, transfer
from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.chains.sightings import Expected, Submission, Verdict
from tollkeeper.chains.solana.blockhashes import LAG_BLOCKS, Lifetime
from tollkeeper.chains.solana.chain import SolanaChain
from tollkeeper.chains.solana.config import SolanaConfig
from tollkeeper.chains.solana.expiry_proof import has_expired
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.settlement.states import LIFETIME_DOUBTED_SECONDS
from tollkeeper.core.solana.programs import TOKEN_2022_PROGRAM, TOKEN_PROGRAM
from tollkeeper.core.solana.rules import SolanaAsset, chain_checks, read_transfer
from tollkeeper.core.x402.verification import Reason
from tollkeeper.hub.solana.signer import FeePayer
from tollkeeper.sandbox.solana.chain import FINAL_SLOTS, RECENT_SLOTS
from tollkeeper.sandbox.solana.node import BUYER_MICRO, SolanaNode

DEVNET = NETWORKS["solana-devnet"]
ASSET = SolanaAsset(DEVNET, DEVNET.usdc.address)


def deadline(seconds: float = 20) -> float:
    return asyncio.get_running_loop().time() + seconds


def expected(signature: str) -> Expected:
    return Expected(signature, ASSET.address, WALLETS.buyer.address, WALLETS.owner.address, 1, "")


def signed(chain: SolanaChain, draft: Any) -> tuple[bytes, str]:
    fee_payer = FeePayer(WALLETS.fee_payers[0].seed)
    return fee_payer.co_sign(draft.payload(), ASSET, chain.config.policy([fee_payer.address]))


async def test_a_payment_passes_is_sent_and_stands(node: SolanaNode, solana: SolanaChain) -> None:
    draft = paying(node, 7_000)
    transfer_ = read_transfer(draft.payload())
    facts = await solana.state(transfer_)
    assert all(check.ok for check in chain_checks(transfer_, ASSET, facts))
    simulated = await solana.simulate(transfer_)
    assert simulated.error is None
    assert simulated.lifetime == Lifetime(node.chain.slot, node.chain.slot + RECENT_SLOTS + LAG_BLOCKS)
    assert simulated.fee_money == node.chain.balance(WALLETS.fee_payers[0].address)
    raw, signature = signed(solana, draft)
    assert await solana.submit(raw, signature) is Submission.TAKEN
    sighting = await solana.wait(expected(signature), deadline())
    assert (sighting.verdict, sighting.deep, sighting.block_number) == (Verdict.TRANSFERRED, True, node.chain.slot)
    assert node.chain.token_balance(str(account_of(WALLETS.owner.address))) == 7_000
    assert await solana.submit(raw, signature) is Submission.TAKEN  # again: the same transaction
    assert (await solana.simulate(transfer_)).error == "AlreadyProcessed"
    assert node.chain.token_balance(str(account_of(WALLETS.owner.address))) == 7_000


async def test_a_failed_transaction_is_told_from_a_confirmed_one(node: SolanaNode, solana: SolanaChain) -> None:
    """Both are confirmed: whoever looks at that alone takes a failure for a payment."""
    raw, signature = signed(solana, paying(node, BUYER_MICRO + 1))
    assert await solana.submit(raw, signature) is Submission.TAKEN
    sighting = await solana.wait(expected(signature), deadline(0.05))
    assert (sighting.verdict, sighting.deep) == (Verdict.REVERTED, False)  # another branch may still carry it out
    node.chain.next_slot(FINAL_SLOTS)
    assert await solana.wait(expected(signature), deadline()) == replace(sighting, deep=True)


async def test_finality_is_waited_for_where_it_is_needed(node: SolanaNode) -> None:
    chain = SolanaChain(SolanaConfig(DEVNET, (node.url,), is_final_needed=True))
    await chain.open()
    raw, signature = signed(chain, paying(node, 1))
    await chain.submit(raw, signature)
    sighting = await chain.wait(expected(signature), deadline(0.05))
    assert (sighting.verdict, sighting.deep) == (Verdict.TRANSFERRED, False)
    node.chain.next_slot(FINAL_SLOTS)
    assert (await chain.wait(expected(signature), deadline())).deep
    await chain.close()


async def test_what_the_chain_would_refuse_is_named(node: SolanaNode, solana: SolanaChain) -> None:
    async def reasons(draft: Any) -> list[Reason]:
        moved = read_transfer(draft.payload())
        return [check.reason for check in chain_checks(moved, ASSET, await solana.state(moved)) if not check.ok]

    assert await reasons(paying(node, BUYER_MICRO + 1)) == [Reason.FUNDS, Reason.SVM_SIMULATION]
    stranger = str(FEE_PAYER.pubkey())  # has no token account
    assert await reasons(paying(node, 1, pay_to=stranger)) == [Reason.SVM_NO_RECIPIENT, Reason.SVM_SIMULATION]
    assert (await solana.holder_of(str(account_of(stranger)))).wallet is None
    assert (await solana.holder_of(DEVNET.usdc.address)).wallet is None
    holder = await solana.holder_of(str(account_of(WALLETS.owner.address)))
    assert (holder.wallet, holder.is_its_own) == (WALLETS.owner.address, True)
    empty = drafted(
        node,
        compute_limit(),
        compute_price(),
        transfer(1, payer=BUYER.pubkey(), pay_to=WALLETS.owner.address, source=account_of(stranger)),
    )
    assert (await reasons(empty))[0] is Reason.SVM_NO_SENDER
    others = drafted(
        node,
        compute_limit(),
        compute_price(),
        transfer(1, payer=BUYER.pubkey(), pay_to=WALLETS.owner.address, source=account_of(SECOND_BUYER.pubkey())),
    )
    assert await reasons(others) == [Reason.SVM_SIMULATION]
    old = paying(node, 1)
    node.chain.next_slot(RECENT_SLOTS + 1)
    assert await reasons(old) == [Reason.SVM_EXPIRED, Reason.SVM_SIMULATION]


async def test_expiry_is_proven_by_finalized_height_and_never_by_absence(node: SolanaNode, solana: SolanaChain) -> None:
    node.chain.holds = True
    draft = paying(node, 5)
    lifetime = (await solana.simulate(read_transfer(draft.payload()))).lifetime
    raw, signature = signed(solana, draft)
    assert await solana.submit(raw, signature) is Submission.TAKEN
    assert (await solana.wait(expected(signature), deadline(0.05))).verdict is Verdict.ABSENT
    node.chain.next_slot(RECENT_SLOTS + LAG_BLOCKS + 1)  # expired, and a fork could still show it
    assert not await has_expired(solana.quorum, signature, str(Hash(draft.blockhash)), lifetime, None)
    node.chain.next_slot(FINAL_SLOTS)
    node.chain.first_slot = lifetime.first_slot + 1  # a node that has thrown away where it could be
    assert not await has_expired(solana.quorum, signature, str(Hash(draft.blockhash)), lifetime, None)
    node.chain.first_slot = lifetime.first_slot
    node.chain.lacks = range(lifetime.last_height - 1, lifetime.last_height)  # a node that was away meanwhile
    assert not await has_expired(solana.quorum, signature, str(Hash(draft.blockhash)), lifetime, None)
    node.chain.lacks = range(lifetime.last_height + 2, lifetime.last_height + 3)  # where it cannot be any more
    node.chain.next_slot(FINAL_SLOTS)
    assert not await has_expired(solana.quorum, signature, str(Hash(draft.blockhash)), lifetime, None)
    node.chain.lacks = range(0)
    assert await has_expired(solana.quorum, signature, str(Hash(draft.blockhash)), lifetime, None)
    node.chain.release()
    assert (await solana.see([signature]))[0].verdict is Verdict.ABSENT


async def test_what_was_executed_has_not_expired(node: SolanaNode, solana: SolanaChain) -> None:
    draft = paying(node, 5)
    lifetime = (await solana.simulate(read_transfer(draft.payload()))).lifetime
    raw, signature = signed(solana, draft)
    await solana.submit(raw, signature)
    node.chain.next_slot(RECENT_SLOTS + LAG_BLOCKS + FINAL_SLOTS + 1)
    assert not await has_expired(solana.quorum, signature, str(Hash(draft.blockhash)), lifetime, None)


async def test_a_life_that_was_counted_too_long_ends_by_the_blocks_own_times(
    node: SolanaNode, solana: SolanaChain
) -> None:
    """The blockhash is old, long after the signature, by our clock and by finalized blocks', and no block shows it."""
    node.chain.holds = True
    draft = paying(node, 5)
    raw, signature = signed(solana, draft)
    await solana.submit(raw, signature)
    now = int(time.time())
    told = Lifetime(node.chain.slot, 10**9)

    async def is_over(doubted_since: int | None) -> bool:
        return await has_expired(solana.quorum, signature, str(Hash(draft.blockhash)), told, doubted_since)

    node.chain.ahead_seconds = LIFETIME_DOUBTED_SECONDS + 5
    node.chain.next_slot(FINAL_SLOTS + 1)
    assert not await is_over(now)  # a transaction with this blockhash may still be executed
    node.chain.next_slot(RECENT_SLOTS - FINAL_SLOTS)
    node.chain.lacks = range(3, 5)
    assert not await is_over(now)  # the node was away meanwhile
    node.chain.lacks = range(0)
    assert await is_over(now)
    assert not await is_over(now + 10)  # the block is not so much younger
    assert not await is_over(None)  # our clock says that it is not long ago
    node.chain.first_slot = 1  # the node has thrown away what was before, and its first block is younger than that
    assert not await is_over(now)
    assert not await is_over(now + LIFETIME_DOUBTED_SECONDS)
    began_late = Lifetime(10**9, 0)  # by which it has every block, and all are over
    assert not await has_expired(solana.quorum, signature, str(Hash(draft.blockhash)), began_late, now)
    node.chain.first_slot = 0
    assert await has_expired(solana.quorum, signature, str(Hash(draft.blockhash)), began_late, now)
    node.chain.release()
    node.chain.next_slot(1)
    assert await is_over(now)


async def test_what_was_executed_long_ago_has_not_expired(node: SolanaNode, solana: SolanaChain) -> None:
    draft = paying(node, 5)
    raw, signature = signed(solana, draft)
    await solana.submit(raw, signature)
    node.chain.ahead_seconds = 2 * LIFETIME_DOUBTED_SECONDS
    node.chain.next_slot(RECENT_SLOTS + FINAL_SLOTS + 1)
    assert not await has_expired(
        solana.quorum, signature, str(Hash(draft.blockhash)), Lifetime(0, 10**9), int(time.time())
    )


async def test_a_refused_transaction_is_unclear_until_it_is_seen(node: SolanaNode, solana: SolanaChain) -> None:
    raw, signature = signed(solana, paying(node, 5))
    broken = raw[:1] + bytes(64) + raw[65:]  # without our signature
    assert await solana.submit(broken, signature) is Submission.UNCLEAR
    await solana.submit(raw, signature)
    assert await solana.submit(broken, signature) is Submission.TAKEN


async def test_many_transactions_are_looked_at_in_pages(node: SolanaNode, solana: SolanaChain) -> None:
    raw, signature = signed(solana, paying(node, 5))
    await solana.submit(raw, signature)
    wanted = ["1" * 64] * 300 + [signature] + ["1" * 64] * 300
    sightings = await solana.see(wanted)
    assert [one.verdict is Verdict.TRANSFERRED for one in sightings] == [name == signature for name in wanted]


async def test_balances_are_lamports(node: SolanaNode, solana: SolanaChain) -> None:
    node.chain.airdrop(str(account_of("1" * 32)), 5_000_000)
    names = [
        WALLETS.fee_payers[0].address,
        str(account_of("1" * 32)),
        str(account_of(WALLETS.owner.address, mint="1" * 32)),
    ]
    assert await solana.balances(names) == [10**10, 5_000_000, 0]


def test_one_settlement_costs_no_more_than_the_caps_say() -> None:
    assert SolanaConfig(DEVNET, ()).fee_max_lamports == 50_000


Answers = dict[str, Any]


async def serve(answers: Answers, change: Callable[[Any], Any] = lambda body: body) -> tuple[web.AppRunner, str]:
    """A node that answers each method with what it was told to."""

    async def post(request: web.Request) -> web.Response:
        asked = json.loads(await request.read())
        calls = asked if isinstance(asked, list) else [asked]
        replies = [
            {
                "jsonrpc": "2.0",
                "id": call["id"],
                **answers.get(call["method"], {"error": {"code": -1, "message": "no"}}),
            }
            for call in calls
        ]
        return web.json_response(change(replies if isinstance(asked, list) else replies[0]))

    app = web.Application()
    app.router.add_post("/", post)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    return runner, f"http://{host}:{port}"


def valued(value: Any) -> Any:
    return {"result": {"context": {"slot": 1}, "value": value}}


MINT = {"data": ["AQ==", "base64"], "owner": "11111111111111111111111111111111"}


def mint_of(program: str, *, decimals: int = 6, extension: int | None = None) -> dict[str, Any]:
    """A mint as a node shows it."""
    data = bytes(Mint(None, 10**15, decimals, is_initialized=True, freeze_authority=None))
    if extension is not None:
        data += bytes(83) + b"\x01" + extension.to_bytes(2, "little") + b"\x04\x00" + bytes(4)
    return {"data": [base64.b64encode(data).decode(), "base64"], "owner": program}


@pytest.mark.parametrize(
    ("mint", "is_token_2022", "problem"),
    [
        (mint_of(TOKEN_PROGRAM), False, ""),
        (mint_of(TOKEN_PROGRAM), True, "no mint of Token-2022"),
        (mint_of(TOKEN_2022_PROGRAM), False, "no mint of SPL Token"),
        (mint_of(TOKEN_2022_PROGRAM), True, ""),
        (mint_of(TOKEN_2022_PROGRAM, extension=18), True, ""),
        (mint_of(TOKEN_2022_PROGRAM, extension=1), True, "extensions"),
        (mint_of(TOKEN_2022_PROGRAM, extension=14), True, "extensions"),
        (mint_of(TOKEN_2022_PROGRAM, extension=99), True, "extensions"),
        (mint_of(TOKEN_2022_PROGRAM, decimals=9), True, "no mint of Token-2022"),
    ],
)
async def test_a_mint_of_token_2022_is_taken_where_it_is_configured_and_does_nothing_else(
    mint: dict[str, Any], problem: str, *, is_token_2022: bool
) -> None:
    answers = {"getGenesisHash": {"result": DEVNET.genesis_hash}, "getSlot": {"result": 7}}
    runner, url = await serve({**answers, "getAccountInfo": valued(mint)})
    chain = SolanaChain(SolanaConfig(DEVNET, (url,), is_token_2022=is_token_2022))
    await chain.open()
    assert (chain.asset is None) == bool(problem)
    assert problem in chain.problem
    await chain.close()
    await runner.cleanup()


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({"getGenesisHash": {"result": NETWORKS["solana-mainnet"].genesis_hash}}, "genesis hash"),
        ({"getGenesisHash": {"result": DEVNET.genesis_hash}, "getAccountInfo": valued(None)}, "no account"),
        ({"getGenesisHash": {"result": DEVNET.genesis_hash}, "getAccountInfo": valued(MINT)}, "no mint"),
    ],
)
async def test_a_node_of_another_chain_or_token_disables_the_network(answers: Answers, problem: str) -> None:
    runner, url = await serve({"getAccountInfo": valued(None), "getSlot": {"result": 1}, **answers})
    chain = SolanaChain(SolanaConfig(DEVNET, (url,)))
    for _ in range(2):
        await chain.open()
        assert chain.asset is None
        assert chain.is_refused
        assert problem in chain.problem
    await chain.close()
    await runner.cleanup()


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"getGenesisHash": {"result": 7}, "getAccountInfo": valued(None)},
        {"getGenesisHash": {"result": DEVNET.genesis_hash}},
        {"getGenesisHash": {"result": DEVNET.genesis_hash}, "getAccountInfo": {"result": 7}},
        {"getGenesisHash": {"result": DEVNET.genesis_hash}, "getAccountInfo": valued({"data": 7})},
    ],
)
async def test_a_node_that_says_nothing_leaves_the_network_as_it_was(answers: Answers) -> None:
    runner, url = await serve(answers)
    chain = SolanaChain(SolanaConfig(DEVNET, (url,)))
    with pytest.raises(RpcUnavailable):
        await chain.open()
    assert chain.asset is None
    assert not chain.is_refused
    await chain.close()
    await runner.cleanup()


LIES: list[tuple[str, Any]] = [
    ("getSignatureStatuses", valued([])),
    ("getSignatureStatuses", valued([{"confirmationStatus": "finalized", "slot": 7}])),
    ("getSignatureStatuses", valued([{"err": None, "slot": "7", "confirmationStatus": "finalized"}])),
    ("getSignatureStatuses", valued(["finalized"])),
    ("getSignatureStatuses", {"result": None}),
    ("getSignatureStatuses", {"error": {"code": -32005, "message": "behind"}}),
    ("getEpochInfo", {"result": {"blockHeight": "900"}}),
    ("getEpochInfo", {"result": True}),
    ("getEpochInfo", {"result": {"blockHeight": -1}}),
    ("getEpochInfo", {"error": {"code": -32005, "message": "behind"}}),
    ("getFirstAvailableBlock", {"error": {"code": -32601, "message": "Method not found"}}),
    ("getSlot", {"result": None}),
    ("getBlocks", {"result": None}),
    ("getBlocks", {"result": [1, 1]}),
    ("getBlocks", {"result": [7]}),
    ("getBlocks", {"error": {"code": -32601, "message": "Method not found"}}),
    ("getBlock", {"result": None}),
    ("getBlock", {"result": {"parentSlot": 0, "blockHeight": None}}),
    ("getBlock", {"error": {"code": -32007, "message": "Slot 1 was skipped"}}),
    ("getBlockTime", {"result": None}),
    ("getBlockTime", {"error": {"code": -32004, "message": "Block not available for slot 10000"}}),
    ("getBalance", valued(None)),
    ("simulateTransaction", {"result": {"value": {"err": None}}}),
    ("simulateTransaction", valued({})),
    ("simulateTransaction", valued(None)),
    ("simulateTransaction", {"error": {"code": -32602, "message": "unsupported"}}),
    ("isBlockhashValid", valued("true")),
    ("getMultipleAccounts", valued([None])),
    ("getMultipleAccounts", valued([{"data": ["!", "base64"], "owner": "x"}, None])),
    ("getMultipleAccounts", valued([{"data": ["", "base58"], "owner": "x"}, None])),
]


@pytest.mark.parametrize(("method", "lie"), LIES)
async def test_an_unclear_answer_is_no_answer(node: SolanaNode, method: str, lie: Any) -> None:
    honest: Answers = {
        "getSignatureStatuses": valued([None]),
        "getEpochInfo": {"result": {"blockHeight": 10_000}},
        "getFirstAvailableBlock": {"result": 0},
        "getSlot": {"result": 1},
        "getBalance": valued(5),
        "simulateTransaction": valued({"err": None}),
        "getBlockTime": {"result": 2_000},
        "getBlocks": {"result": [1]},
        "getBlock": {"result": {"parentSlot": 0, "blockHeight": 1}},
        "isBlockhashValid": valued(False),
        "getMultipleAccounts": valued([None, None]),
    }
    runner, url = await serve({**honest, method: lie})
    chain = SolanaChain(SolanaConfig(DEVNET, (url,)))
    moved = read_transfer(paying(node, 1).payload())

    async def ask_all() -> None:
        await chain.see(["1" * 64])
        await has_expired(chain.quorum, "1" * 64, "1" * 32, Lifetime(3, 10_000), 700)
        await chain.reader.see_final(["1" * 64])
        await chain.simulate(moved)
        await chain.state(moved)

    with pytest.raises(RpcUnavailable):
        await ask_all()
    await chain.close()
    await runner.cleanup()


async def test_a_transaction_that_nobody_can_be_asked_about_is_unclear(node: SolanaNode, solana: SolanaChain) -> None:
    raw, signature = signed(solana, paying(node, 5))
    runner, url = await serve({"sendTransaction": {"result": "1" * 64}})
    lying = SolanaChain(SolanaConfig(DEVNET, (url,)))
    assert await lying.submit(raw, signature) is Submission.UNCLEAR
    await runner.cleanup()
    assert await lying.submit(raw, signature) is Submission.UNCLEAR
    assert (await lying.wait(expected(signature), deadline(0.05))).verdict is Verdict.ABSENT
    await lying.close()
