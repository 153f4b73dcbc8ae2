"""The embedded Solana chain behaves as a cluster does where x402 can tell (specification 2.4).

Its transactions are made by solders, not by code of ours.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import time
from dataclasses import replace
from typing import Any

import aiohttp
import msgspec
import pytest
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair

from tests.core.solana_payments import Draft, compute_limit, compute_price, memo, transfer
from tests.node_thread import run_in_thread
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.solana.programs import associated_token_account
from tollkeeper.sandbox.rpc_server import INTERNAL_ERROR, JsonRpcApp, ServedRpcError
from tollkeeper.sandbox.solana.chain import FINAL_SLOTS, RECENT_SLOTS, TIMES_KEPT
from tollkeeper.sandbox.solana.node import BUYER_MICRO, SolanaNode
from tollkeeper.sandbox.wallets import SolanaWallets, derive_solana_wallets

WALLETS = derive_solana_wallets()
FEE_PAYER, BUYER = (Keypair.from_seed(one.seed) for one in (WALLETS.fee_payers[0], WALLETS.buyer))
USDC = NETWORKS["solana-devnet"].usdc.address
MEMOS = itertools.count()


def paid(rpc: JsonRpcApp, amount: int = 5_000, *, signers: tuple[Keypair, ...] = (FEE_PAYER, BUYER)) -> str:
    blockhash = rpc.call("getLatestBlockhash")["value"]["blockhash"]
    moved = transfer(amount, payer=BUYER.pubkey(), pay_to=WALLETS.owner.address)
    return encoded(moved, blockhash, signers)


def encoded(moved: Instruction, blockhash: str, signers: tuple[Keypair, ...]) -> str:
    used = (compute_limit(), compute_price(), moved, memo(str(next(MEMOS)).encode()))
    draft = Draft(used, FEE_PAYER.pubkey(), signers, bytes(Hash.from_string(blockhash)))
    return base64.b64encode(bytes(draft.transaction())).decode()


def held(rpc: JsonRpcApp, wallet: str) -> int:
    account = associated_token_account(wallet, USDC)
    return int(rpc.call("getTokenAccountBalance", [account])["value"]["amount"])


@pytest.fixture
def node() -> SolanaNode:
    return SolanaNode(wallets=WALLETS, slot_seconds=None)


def test_keys_of_the_play_are_valid_and_differ() -> None:
    everyone = [*WALLETS.fee_payers, WALLETS.owner, WALLETS.buyer, WALLETS.second_buyer]
    assert len({one.address for one in everyone}) == len(everyone)
    for one in everyone:
        assert str(Keypair.from_base58_string(one.secret_key).pubkey()) == one.address
    assert isinstance(derive_solana_wallets(seed="another"), SolanaWallets)
    assert derive_solana_wallets(seed="another") != WALLETS


def test_the_mint_is_the_one_that_clients_know(node: SolanaNode) -> None:
    found = node.rpc.call("getAccountInfo", [USDC, {"encoding": "base64"}])["value"]
    assert found["owner"] == "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"
    assert base64.b64decode(found["data"][0])[44] == 6
    assert held(node.rpc, WALLETS.buyer.address) == BUYER_MICRO
    assert held(node.rpc, WALLETS.owner.address) == 0
    assert node.rpc.call("getAccountInfo", [str(Keypair().pubkey())])["value"] is None


def test_a_payment_moves_money_once(node: SolanaNode) -> None:
    text = paid(node.rpc)
    lamports = node.chain.balance(str(FEE_PAYER.pubkey()))
    signature = node.rpc.call("sendTransaction", [text, {"encoding": "base64"}])
    assert node.rpc.call("sendTransaction", [text, {"encoding": "base64", "skipPreflight": True}]) == signature
    assert held(node.rpc, WALLETS.owner.address) == 5_000
    status = node.rpc.call("getSignatureStatuses", [[signature, "1" * 64]])["value"]
    assert status[0]["err"] is None
    assert status[0]["confirmationStatus"] == "confirmed"
    assert status[1] is None
    read = node.rpc.call("getTransaction", [signature])
    assert read["transaction"] == [text, "base64"]
    assert lamports - node.chain.balance(str(FEE_PAYER.pubkey())) == read["meta"]["fee"] == 10_000 + 1
    node.rpc.call("sandbox_advance", [FINAL_SLOTS])
    assert node.rpc.call("getSignatureStatuses", [[signature]])["value"][0]["confirmationStatus"] == "finalized"
    simulated = node.rpc.call("simulateTransaction", [text, {"sigVerify": False}])["value"]
    assert simulated["err"] == "AlreadyProcessed"
    with pytest.raises(ServedRpcError, match="AlreadyProcessed") as caught:
        node.rpc.call("sendTransaction", [text])
    assert caught.value.code == -32002


@pytest.mark.parametrize("lamports", [0, 890_881])
def test_what_its_fee_payer_cannot_pay_for_is_in_no_block(node: SolanaNode, lamports: int) -> None:
    """Whether it has nothing, or would be left with less than what exempts it from rent."""
    text = paid(node.rpc)
    fee_payer = str(FEE_PAYER.pubkey())
    node.rpc.call("sandbox_hold")
    signature = node.rpc.call("sendTransaction", [text])
    node.chain.drain(fee_payer)
    if lamports:
        node.chain.airdrop(fee_payer, lamports)
    node.rpc.call("sandbox_release")
    assert node.rpc.call("getSignatureStatuses", [[signature]])["value"] == [None]
    assert node.rpc.call("simulateTransaction", [text])["value"]["err"] is not None
    assert node.chain.balance(fee_payer) == lamports
    node.chain.airdrop(fee_payer, 10**9)
    assert node.rpc.call("sendTransaction", [text]) == signature
    assert held(node.rpc, WALLETS.owner.address) == 5_000


def test_simulation_needs_no_signature_and_changes_nothing(node: SolanaNode) -> None:
    text = paid(node.rpc, signers=(BUYER,))
    for _ in range(2):
        assert node.rpc.call("simulateTransaction", [text, {"sigVerify": False}])["value"]["err"] is None
    assert held(node.rpc, WALLETS.owner.address) == 0
    with pytest.raises(ServedRpcError, match="signature verification"):
        node.rpc.call("simulateTransaction", [text, {"sigVerify": True}])
    with pytest.raises(ServedRpcError, match="signature verification"):
        node.rpc.call("sendTransaction", [text])


def test_a_failure_is_refused_by_preflight_and_executed_without(node: SolanaNode) -> None:
    text = paid(node.rpc, BUYER_MICRO + 1)
    error = {"InstructionError": [2, {"Custom": 1}]}
    assert node.rpc.call("simulateTransaction", [text])["value"]["err"] == error
    with pytest.raises(ServedRpcError) as caught:
        node.rpc.call("sendTransaction", [text])
    assert caught.value.code == -32002
    assert isinstance(caught.value.data, dict)
    assert caught.value.data["err"] == error
    lamports = node.chain.balance(str(FEE_PAYER.pubkey()))
    signature = node.rpc.call("sendTransaction", [text, {"skipPreflight": True}])
    assert node.rpc.call("getSignatureStatuses", [[signature]])["value"][0]["err"] == error
    assert lamports - node.chain.balance(str(FEE_PAYER.pubkey())) == 10_001
    assert held(node.rpc, WALLETS.owner.address) == 0


def test_a_blockhash_is_recent_for_150_slots(node: SolanaNode) -> None:
    blockhash = node.rpc.call("getLatestBlockhash")["value"]
    text = paid(node.rpc)
    node.chain.next_slot(RECENT_SLOTS)
    assert node.rpc.call("getBlockHeight") == blockhash["lastValidBlockHeight"]
    assert node.rpc.call("isBlockhashValid", [blockhash["blockhash"]])["value"]
    node.chain.next_slot()
    assert not node.rpc.call("isBlockhashValid", [blockhash["blockhash"]])["value"]
    assert node.rpc.call("simulateTransaction", [text])["value"]["err"] == "BlockhashNotFound"
    replaced = node.rpc.call("simulateTransaction", [text, {"replaceRecentBlockhash": True}])["value"]
    assert replaced["err"] is None
    assert replaced["unitsConsumed"] > 0
    assert replaced["replacementBlockhash"]["blockhash"] == node.chain.blockhash != blockhash["blockhash"]
    with pytest.raises(ServedRpcError, match="BlockhashNotFound"):
        node.rpc.call("sendTransaction", [text])
    signature = node.rpc.call("sendTransaction", [text, {"skipPreflight": True}])
    assert node.rpc.call("getSignatureStatuses", [[signature]])["value"] == [None]
    assert node.rpc.call("getBlockHeight", [{"commitment": "finalized"}]) == node.chain.slot - FINAL_SLOTS


def test_what_is_held_is_executed_dropped_or_expires(node: SolanaNode) -> None:
    node.rpc.call("sandbox_hold")
    texts = [paid(node.rpc) for _ in range(2)]
    first = node.rpc.call("sendTransaction", [texts[0], {"skipPreflight": True}])
    assert node.rpc.call("sendTransaction", [texts[0], {"skipPreflight": True}]) == first
    assert node.rpc.call("sandbox_heldCount") == 1
    node.rpc.call("sandbox_release")
    assert node.rpc.call("sandbox_heldCount") == 0
    assert held(node.rpc, WALLETS.owner.address) == 5_000
    node.rpc.call("sandbox_hold")
    node.rpc.call("sendTransaction", [texts[1]])
    node.rpc.call("sandbox_drop")
    node.rpc.call("sandbox_release")
    assert held(node.rpc, WALLETS.owner.address) == 5_000
    node.rpc.call("sandbox_hold")
    node.rpc.call("sendTransaction", [texts[1]])
    node.rpc.call("sandbox_advance")
    node.rpc.call("sandbox_release")
    assert held(node.rpc, WALLETS.owner.address) == 5_000


@pytest.mark.parametrize("text", ["", "AAAA", "no base64", base64.b64encode(bytes(2000)).decode()])
def test_what_is_no_transaction_is_refused(node: SolanaNode, text: str) -> None:
    for method in ("sendTransaction", "simulateTransaction"):
        with pytest.raises(ServedRpcError) as caught:
            node.rpc.call(method, [text])
        assert caught.value.code == -32602


METHODS = """
getHealth getVersion getGenesisHash getSlot getBlockHeight getFirstAvailableBlock getBlockTime getEpochInfo
getLatestBlockhash isBlockhashValid getMinimumBalanceForRentExemption getAccountInfo getMultipleAccounts getBalance
getTokenAccountBalance requestAirdrop getSignaturesForAddress simulateTransaction sendTransaction getSignatureStatuses
getTransaction getBlocks getBlock sandbox_advance sandbox_hold sandbox_heldCount sandbox_release sandbox_drop
sandbox_rollBack sandbox_openAccount
"""
ODD: tuple[Any, ...] = (
    *(None, True, -1, 2**63, 2**64, 10**30, 1.5, "", "x", "1" * 32, "z" * 88, WALLETS.buyer.address),
    *([], {}, [None], ["x"], {"commitment": 5}, {"dataSlice": 5}, {"dataSlice": {"offset": -1, "length": 2**70}}),
    *({"limit": "a"}, {"limit": -1}, {"before": "x"}, {"replaceRecentBlockhash": True, "sigVerify": True}),
)


def test_no_parameters_are_a_fault_of_the_node(node: SolanaNode) -> None:
    """It refuses them or answers, in JSON, and goes on."""
    for method in METHODS.split():
        for params in [[], *([one] for one in ODD), *([*pair] for pair in itertools.product(ODD, ODD))]:
            answer = node.rpc.answer({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
            msgspec.json.encode(answer)
            error = answer.get("error")
            assert not isinstance(error, dict) or error["code"] != INTERNAL_ERROR, (method, params)
    for odd in ODD:
        assert odd == [] or "error" in node.rpc.answer({"id": 1, "method": "getBalance", "params": odd})
    had = held(node.rpc, WALLETS.owner.address)
    node.rpc.call("sandbox_release")
    node.rpc.call("sendTransaction", [paid(node.rpc), {"encoding": "base64"}])
    assert held(node.rpc, WALLETS.owner.address) == had + 5_000


def test_no_bytes_in_place_of_a_transaction_s_are_a_fault_of_the_node(node: SolanaNode) -> None:
    raw = base64.b64decode(paid(node.rpc))
    for at, put in itertools.product(range(len(raw)), (0x00, 0x01, 0x7F, 0x80, 0xFF)):
        text = base64.b64encode(raw[:at] + bytes([put]) + raw[at + 1 :]).decode()
        for method, option in (("simulateTransaction", "sigVerify"), ("sendTransaction", "skipPreflight")):
            request = {"id": 1, "method": method, "params": [text, {option: method == "sendTransaction"}]}
            error = node.rpc.answer(request).get("error")
            assert not isinstance(error, dict) or error["code"] != INTERNAL_ERROR, (method, at, put)


def test_every_block_has_its_time(node: SolanaNode) -> None:
    signature = node.rpc.call("sendTransaction", [paid(node.rpc)])
    slot = node.rpc.call("getSlot")
    seconds = node.rpc.call("getBlockTime", [slot])
    assert abs(time.time() - seconds) < 60
    assert node.rpc.call("getTransaction", [signature])["blockTime"] == seconds
    asked = [str(BUYER.pubkey()), {"commitment": "confirmed"}]
    assert node.rpc.call("getSignaturesForAddress", asked)[0]["blockTime"] == seconds
    for none in (slot + 1, -1):
        with pytest.raises(ServedRpcError) as caught:
            node.rpc.call("getBlockTime", [none])
        assert caught.value.code == -32004
    node.chain.next_slot(TIMES_KEPT)
    with pytest.raises(ServedRpcError, match="not available"):
        node.rpc.call("getBlockTime", [slot])


def test_blocks_are_listed_by_their_slots_as_far_as_the_node_has_them(node: SolanaNode) -> None:
    node.chain.next_slot(20 - node.chain.slot)
    node.chain.lacks = range(12, 15)
    assert node.rpc.call("getBlocks", [10, 16]) == [10, 11, 15, 16]
    assert node.rpc.call("getBlocks", [18, 25]) == [18, 19, 20]
    assert node.rpc.call("getBlocks", [0, None, {"commitment": "finalized"}]) == [0]
    assert node.rpc.call("getBlock", [16]) == {
        "blockHeight": 16,
        "parentSlot": 15,
        "blockTime": node.rpc.call("getBlockTime", [16]),
    }
    for slot, code in ((13, -32007), (21, -32004)):
        with pytest.raises(ServedRpcError) as caught:
            node.rpc.call("getBlock", [slot])
        assert caught.value.code == code
    with pytest.raises(ServedRpcError, match="too large"):
        node.rpc.call("getBlocks", [-(10**6), 20])


def test_accounts_and_the_cluster_are_described(node: SolanaNode) -> None:
    assert node.rpc.call("getHealth") == "ok"
    assert node.rpc.call("getGenesisHash").startswith("EtWTRABZaYq6iMfeYKouRu166VU2xqa1")
    assert node.rpc.call("getEpochInfo")["absoluteSlot"] == node.rpc.call("getSlot") == node.chain.slot
    assert node.rpc.call("getVersion")["solana-core"]
    assert node.rpc.call("getMinimumBalanceForRentExemption", [165]) == 2_039_280
    stranger = str(Keypair().pubkey())
    assert node.rpc.call("getBalance", [stranger])["value"] == 0
    node.rpc.call("requestAirdrop", [stranger, 7_000_000])
    assert node.rpc.call("getBalance", [stranger])["value"] == 7_000_000
    both = node.rpc.call("getMultipleAccounts", [[stranger, str(Keypair().pubkey())]])["value"]
    assert both[0]["lamports"] == 7_000_000
    assert both[1] is None
    with pytest.raises(ServedRpcError, match="airdrop"):
        node.rpc.call("requestAirdrop", [stranger, 10**12])
    with pytest.raises(ServedRpcError, match="could not find account"):
        node.rpc.call("getTokenAccountBalance", [associated_token_account(stranger, USDC)])
    node.rpc.call("sandbox_openAccount", [stranger, 3])
    assert held(node.rpc, stranger) == 3


def test_an_airdrop_is_a_transaction_that_confirms(node: SolanaNode) -> None:
    """As a client waits for a faucet's, so it does here; two of the same are two."""
    stranger = str(Keypair().pubkey())
    names = [node.rpc.call("requestAirdrop", [stranger, 5_000_000]) for _ in range(2)]
    assert len(set(names)) == 2
    assert node.rpc.call("getBalance", [stranger])["value"] == 10_000_000
    statuses = node.rpc.call("getSignatureStatuses", [names])["value"]
    assert [(one["confirmationStatus"], one["err"]) for one in statuses] == [("confirmed", None)] * 2
    listed = node.rpc.call("getSignaturesForAddress", [stranger, {"commitment": "confirmed"}])
    assert {one["signature"] for one in listed} == set(names)
    assert [node.rpc.call("getTransaction", [name, {}])["meta"]["err"] for name in names] == [None, None]
    node.chain.next_slot(FINAL_SLOTS)
    assert node.rpc.call("getSignatureStatuses", [names])["value"][0]["confirmationStatus"] == "finalized"


def test_an_airdrop_waits_like_every_transaction_and_too_little_is_refused(node: SolanaNode) -> None:
    stranger = str(Keypair().pubkey())
    with pytest.raises(ServedRpcError, match="Rent"):  # what does not exempt a new account from rent
        node.rpc.call("requestAirdrop", [stranger, 1])
    node.chain.holds = True
    name = node.rpc.call("requestAirdrop", [stranger, 5_000_000])
    assert node.rpc.call("getSignatureStatuses", [[name]])["value"] == [None]
    assert node.rpc.call("getBalance", [stranger])["value"] == 0
    node.chain.release()
    assert node.rpc.call("getSignatureStatuses", [[name]])["value"][0]["err"] is None
    assert node.rpc.call("getBalance", [stranger])["value"] == 5_000_000


async def ask(session: aiohttp.ClientSession, url: str, body: Any) -> Any:
    async with session.post(url, data=json.dumps(body)) as response:
        return json.loads(await response.read())


async def test_slots_pass_and_requests_come_alone_or_together() -> None:
    async with SolanaNode(slot_seconds=0.01) as node, aiohttp.ClientSession() as session:
        slot = {"jsonrpc": "2.0", "id": 1, "method": "getSlot"}
        first = await ask(session, node.url, slot)
        blockhash = node.chain.blockhash
        while (await ask(session, node.url, slot))["result"] <= first["result"] + 2:  # noqa: ASYNC110 - another's clock
            await asyncio.sleep(0.01)
        assert node.chain.blockhash != blockhash
        answers = await ask(session, node.url, [slot, {"id": 2, "method": "nothing"}, {"id": 3, "method": "getHealth"}])
        assert [answer.get("error", {}).get("code") for answer in answers] == [None, -32601, None]


async def test_subscriptions_tell_of_slots_and_signatures() -> None:
    async with (
        SolanaNode(slot_seconds=None) as node,
        aiohttp.ClientSession() as session,
        session.ws_connect(node.url.replace("http", "ws")) as socket,
    ):
        blockhash = node.chain.blockhash
        text = encoded(transfer(1, payer=BUYER.pubkey(), pay_to=WALLETS.owner.address), blockhash, (FEE_PAYER, BUYER))
        await socket.send_json({"jsonrpc": "2.0", "method": "ping"})
        await socket.send_json({"id": 1, "method": "nothingSubscribe", "params": []})
        assert (await socket.receive_json())["error"]["code"] == -32601
        await socket.send_json({"id": 2, "method": "slotSubscribe", "params": []})
        subscription = (await socket.receive_json())["result"]
        told = await socket.receive_json()
        assert told["method"] == "slotNotification"
        assert told["params"]["subscription"] == subscription
        assert told["params"]["result"]["slot"] == node.chain.slot
        await socket.send_json({"id": 3, "method": "slotUnsubscribe", "params": [subscription]})
        while (answer := await socket.receive_json()).get("id") != 3:
            assert answer["method"] == "slotNotification"
        assert answer["result"] is True
        signature = (await ask(session, node.url, {"id": 1, "method": "sendTransaction", "params": [text]}))["result"]
        await socket.send_json({"id": 4, "method": "signatureSubscribe", "params": [signature]})
        subscription = (await socket.receive_json())["result"]
        told = await socket.receive_json()
        assert told["method"] == "signatureNotification"
        assert told["params"] == {
            "subscription": subscription,
            "result": {"context": {"slot": node.chain.slot}, "value": {"err": None}},
        }


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("no json", -32700),
        ("[" * 100_000, -32700),
        ("[]", -32600),
        ('"slotSubscribe"', -32600),
        ('{"id": 1}', -32600),
        ('{"id": 1, "method": "signatureSubscribe", "params": []}', -32602),
        ('{"id": 1, "method": "signatureSubscribe", "params": {"signature": "1"}}', -32602),
        ('{"id": 1, "method": "signatureSubscribe", "params": [[]]}', -32602),
        ('{"id": 1, "method": "slotUnsubscribe"}', -32602),
        ('{"id": 1, "method": "slotUnsubscribe", "params": [[]]}', -32602),
    ],
)
async def test_a_bad_request_for_a_subscription_is_refused_and_those_there_are_go_on(text: str, code: int) -> None:
    async with (
        SolanaNode(slot_seconds=None) as node,
        aiohttp.ClientSession() as session,
        session.ws_connect(node.url.replace("http", "ws")) as socket,
    ):
        await socket.send_str(text)
        assert (await socket.receive_json())["error"]["code"] == code
        await socket.send_json({"id": 2, "method": "slotSubscribe"})
        assert (await socket.receive_json())["id"] == 2
        assert (await socket.receive_json())["method"] == "slotNotification"


def test_it_runs_on_a_thread_of_its_own() -> None:
    async def slot(url: str) -> Any:
        async with aiohttp.ClientSession() as session:
            return await ask(session, url, {"id": 1, "method": "getSlot"})

    with run_in_thread(SolanaNode()) as node:
        assert asyncio.run(slot(node.url))["result"] >= 1
        with pytest.raises(OSError, match="in use"), run_in_thread(SolanaNode(port=int(node.url.rpartition(":")[2]))):
            pass


def test_a_draft_can_be_sent_on_a_legacy_message_too(node: SolanaNode) -> None:
    moved = transfer(9, payer=BUYER.pubkey(), pay_to=WALLETS.owner.address)
    draft = Draft((compute_limit(), compute_price(), moved), FEE_PAYER.pubkey(), (FEE_PAYER, BUYER))
    recent = replace(draft, is_legacy=True, blockhash=bytes(Hash.from_string(node.chain.blockhash)))
    node.rpc.call("sendTransaction", [base64.b64encode(bytes(recent.transaction())).decode()])
    assert held(node.rpc, WALLETS.owner.address) == 9
