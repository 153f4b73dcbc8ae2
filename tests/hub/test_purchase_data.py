"""`purchaseData` and a request's expiry: only a trusted gateway's signature counts (contract 4.3, 6, 7)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.auth.server import issuer, serving
from tests.chains.batching import payers, plant
from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.forks import take_back
from tests.hub.chaos import Act, ChaosNode, run_chaos
from tests.hub.gateway_requests import (
    DATA,
    IMPOSTOR,
    KEY,
    OTHER,
    OTHER_URL,
    STRANGER,
    TRUSTED,
    post,
    request_of,
    signed,
)
from tests.hub.hub_under_test import PUBLIC_URL, Answer, HubUnderTest, TestPayment, new_payment, one_under_way, run_hub
from tests.hub.tables import cells, filled, read_table
from tests.hub.test_asked_again import other_chain_id
from tests.hub.test_unknown_outcomes import drain
from tests.ports import free_port
from tollkeeper.api import clock_ms
from tollkeeper.core.evm.batches import Via
from tollkeeper.core.evm.encoding import transfer_calldata
from tollkeeper.core.http.signatures import Algorithm, SigningKey, content_digest
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.serving.keys.trusted_gateways import GatewayKeys
from tollkeeper.storage.urls import open_database


@asynccontextmanager
async def trusting_behind_chaos(folder: Path, chain: ChainUnderTest) -> AsyncIterator[tuple[HubUnderTest, ChaosNode]]:
    """A hub that trusts the gateway, and what is between it and its node."""
    async with (
        run_chaos(chain.url) as chaos,
        run_hub(folder, chain, rpc_url=chaos.url, trusted_keys=TRUSTED) as hub,
    ):
        yield hub, chaos


async def purchase_data_of(hub: HubUnderTest, chain: ChainUnderTest) -> Any:
    bearer = await hub.login(chain.wallets.buyer)
    (item,) = (await hub.get("/api/v1/history?limit=1", Authorization=bearer)).body["history"]
    return item.get("purchaseData")


@pytest.mark.parametrize(
    ("called", "signed_path"),
    [
        ("/settle", "/settle"),
        ("/settle", "/hub/settle"),
        ("/api/v1/settle", "/api/v1/settle"),
        ("/api/v1/settle", "/hub/api/v1/settle"),
    ],
)
async def test_a_trusted_gateway_s_purchase_data_is_in_the_history(
    trusting_hub: HubUnderTest, embedded_chain: ChainUnderTest, called: str, signed_path: str
) -> None:
    assert PUBLIC_URL.endswith("/hub")
    body = request_of(new_payment(embedded_chain))
    answer = await post(trusting_hub, body, signed(body, path=signed_path), called)
    assert answer.body["success"] is True
    assert await purchase_data_of(trusting_hub, embedded_chain) == DATA
    bearer = await trusting_hub.login(embedded_chain.wallets.buyer)
    (item,) = (await trusting_hub.get("/api/v1/history?limit=1", Authorization=bearer)).body["history"]
    assert [filled(row) for row in await read_table(trusting_hub, bearer)] == [cells(item)]


async def test_unsigned_purchase_data_is_left_out_and_the_payment_settled(
    trusting_hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    answer = await post(trusting_hub, request_of(new_payment(embedded_chain)), {})
    assert answer.body["success"] is True
    assert await purchase_data_of(trusting_hub, embedded_chain) is None


@pytest.mark.parametrize("is_known_first", [False, True])
async def test_a_gateway_s_request_shows_its_own_outcome_again_also_where_its_key_could_not_be_read_once(
    trusting_hub: HubUnderTest, embedded_chain: ChainUnderTest, *, is_known_first: bool
) -> None:
    """The hub, or another of its nodes, knew who signed it at one time only: what was paid is no duplicate."""
    body = request_of(new_payment(embedded_chain))
    other = request_of(new_payment(embedded_chain))
    keys, told = trusting_hub.hub.trusted_keys, []
    trusted = dict(keys)
    for is_known in (is_known_first, not is_known_first, is_known_first):
        keys.clear()
        keys.update(trusted if is_known else {})
        answer = await post(trusting_hub, body, signed(body))
        told.append((answer.body["success"], answer.body["transaction"]))
    assert told == [(True, told[0][1])] * 3
    assert (await post(trusting_hub, body, signed(body, idempotency_key="claim.2"))).reason == "duplicate_settlement"
    assert (await post(trusting_hub, other, signed(other))).code == "CONFLICT"


async def tried_and_failed(hub: HubUnderTest, chaos: ChaosNode, chain: ChainUnderTest) -> TestPayment:
    """A trusted gateway's payment whose transaction reverted, because its payer's money was gone for a moment."""
    payment = new_payment(chain)
    body = request_of(payment)
    chaos.on("eth_sendRawTransaction", Act.CUT)
    assert (await post(hub, body, {**signed(body), "Prefer": "wait=0"})).status == 503
    value = drain(chain)
    chaos.calm()
    await hub.complete()  # sends it
    await hub.complete()  # sees it reverted
    assert await hub.status(payment) == "failed"
    chain.mint(chain.wallets.buyer.address, value)
    return payment


async def test_what_failed_for_a_gateway_is_tried_again_for_that_gateway_alone(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    """Its transaction has shown the payment to everybody, and whoever had it settled would leave its buyer without."""
    async with trusting_behind_chaos(tmp_path, embedded_chain) as (hub, chaos):
        payment = await tried_and_failed(hub, chaos, embedded_chain)
        elsewhere = json.dumps(payment.asking(confirm=True, purchaseData={**DATA, "gateway": OTHER_URL})).encode()
        strangers = [
            await hub.settle(payment),
            await hub.settle(payment, key="stranger.1"),
            await post(hub, request_of(payment), {}),
            await post(hub, request_of(payment), signed(request_of(payment), key=STRANGER, idempotency_key="claim.7")),
            await post(hub, elsewhere, signed(elsewhere, idempotency_key="claim.8")),
            await post(hub, elsewhere, signed(elsewhere, key=OTHER, idempotency_key="claim.9")),
            await post(hub, request_of(payment), signed(request_of(payment), key=OTHER, idempotency_key="claim.10")),
        ]
        for answer in strangers:
            assert (answer.status, answer.body["success"]) == (200, False)
            assert answer.reason == "invalid_exact_evm_transaction_failed"
        body = request_of(payment)
        again = await post(hub, body, signed(body, idempotency_key="claim.2"))
        assert again.body["success"] is True
        assert (await post(hub, body, signed(body, idempotency_key="claim.2"))).body["success"] is True
        assert (await hub.settle(payment)).reason == "duplicate_settlement"


@pytest.mark.parametrize("how", ["refused", "late", "while it fails again", "while its network is away"])
async def test_a_next_try_that_was_refused_is_told_of_its_purchase_s_payment_once_the_failure_is_taken_back(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, how: str
) -> None:
    """Nothing was sent for it, and on the other branch the first one's transaction made the payment."""
    chain, rpc = anvil_fiat_token, anvil_fiat_token.rpc
    async with trusting_behind_chaos(tmp_path, chain) as (hub, chaos):
        payment = new_payment(chain)
        body = request_of(payment)

        async def next_try() -> Answer:
            created = int(time.time()) - 120 * (how == "late")
            return await post(hub, body, signed(body, idempotency_key="claim.2", created=created))

        rpc.call("evm_setAutomine", False)
        assert (await post(hub, body, {**signed(body), "Prefer": "wait=0"})).status == 503
        mine_without_money(chain)
        await hub.complete()
        assert await hub.status(payment) == "failed"
        if how == "while it fails again":
            take_back(chain, 1)
            await hub.complete()
            assert await hub.status(payment) == "pending"
            waiting = asyncio.create_task(next_try())
            await asyncio.sleep(1)  # it waits for what is pending by then
            mine_without_money(chain)
            await hub.complete()
            assert (await waiting).reason == "invalid_exact_evm_transaction_failed"
        rpc.call("evm_setAutomine", True)
        if how == "while its network is away":
            chaos.falsify = other_chain_id
            await hub.account.chain.open()
            assert (await next_try()).reason == "invalid_network"
            chaos.calm()
            await hub.account.chain.open()
        for _ in range(2):
            refused = await next_try()
            if how == "late":
                assert refused.body["error"]["details"]["reason"] == "signature_expired"
            elif how == "refused":
                assert refused.reason == "insufficient_funds"
            elif how == "while its network is away":
                assert refused.reason == "invalid_network"
        assert (await hub.settle(payment, key="stranger.1")).reason == "invalid_exact_evm_transaction_failed"
        take_back(chain, 1)
        async with asyncio.timeout(60):
            while await hub.status(payment) != "success":
                await hub.complete()
        assert (await next_try()).body["success"] is True
        assert (await post(hub, body, signed(body))).body["success"] is True
        assert (await hub.settle(payment, key="stranger.1")).body["success"] is False
        assert (await hub.settle(payment)).reason == "duplicate_settlement"


def mine_without_money(chain: ChainUnderTest) -> None:
    """A block in which the buyer's money goes elsewhere before anything else."""
    spent = new_payment(chain, value=chain.balance(chain.wallets.buyer.address), pay_to="0x" + "99" * 20)
    data = transfer_calldata(spent.authorization, chain.sign(spent.authorization))
    raw, _ = chain.transaction(chain.wallets.faucet, USDC_ADDRESS, data, max_priority_fee_per_gas=10**8)
    chain.rpc.call("eth_sendRawTransaction", raw)
    chain.rpc.call("evm_mine")


async def test_a_success_that_nobody_was_told_goes_to_the_same_purchase_whatever_its_gate_asks_by_now(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    """Its attempt was taken for failed, and its gate changed before its buyer came back."""
    async with trusting_behind_chaos(tmp_path, embedded_chain) as (hub, chaos):
        payment = new_payment(embedded_chain)
        chaos.on("eth_sendRawTransaction", Act.CUT)
        body = request_of(payment)
        assert (await post(hub, body, {**signed(body), "Prefer": "wait=0"})).status == 503
        chaos.calm()
        await hub.complete()
        await hub.complete()
        assert await hub.status(payment) == "success"

        async def asked(key: str, **changes: Any) -> Answer:
            changed = payment.requiring(resource="https://gate.example/other")
            data = json.dumps(
                {**changed, "confirm": True, "purchaseData": {**DATA, "title": "new", **changes}}
            ).encode()
            return await post(hub, data, signed(data, idempotency_key=key))

        assert (await asked("claim.8", purchaseId="p-2")).reason == "duplicate_settlement"
        for _ in range(2):
            assert (await asked("claim.2")).body["success"] is True
        assert (await asked("claim.3")).reason == "duplicate_settlement"
        assert (await hub.settle(payment)).reason == "duplicate_settlement"


async def test_an_unknown_gateway_s_purchase_data_is_left_out(
    trusting_hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    body = request_of(new_payment(embedded_chain))
    assert (await post(trusting_hub, body, signed(body, key=STRANGER))).body["success"] is True
    assert await purchase_data_of(trusting_hub, embedded_chain) is None


@pytest.mark.parametrize("named", [DATA["gateway"], None, ["https://other.example"]])
async def test_a_trusted_gateway_s_purchase_data_of_another_is_left_out(
    trusting_hub: HubUnderTest, embedded_chain: ChainUnderTest, named: Any
) -> None:
    body = json.dumps(
        new_payment(embedded_chain).asking(confirm=True, purchaseData={**DATA, "gateway": named})
    ).encode()
    with capture_logs() as lines:
        assert (await post(trusting_hub, body, signed(body, key=OTHER))).body["success"] is True
    assert await purchase_data_of(trusting_hub, embedded_chain) is None
    (told,) = (line for line in lines if line["event"] == "purchase_data_names_another_gateway")
    assert told["gateways"] == [OTHER_URL]


async def test_gateways_with_one_key_id_are_both_believed_and_only_of_themselves(
    tmp_path: Path, hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    """The third shows the first one's key as its own, which gives it nothing and takes nothing from the first."""
    keys = [SigningKey("k1", Algorithm.ED25519, bytes([number] * 32)) for number in (1, 2)]
    shown = [[keys[0]], [keys[1]], [keys[0]]]
    async with AsyncExitStack() as stack:
        urls = []
        for number, ring in enumerate(shown):
            database = open_database(str(tmp_path / f"gateway-{number}.db"))
            stack.push_async_callback(database.close)
            auth = issuer(database, clock_ms, keyring=[(key.key_id, key.secret) for key in ring])
            urls.append((await stack.enter_async_context(serving(auth))).base)
        keeping = asyncio.create_task(GatewayKeys(urls, hub.hub.trusted_keys).keep_fresh())
        stack.callback(keeping.cancel)
        async with asyncio.timeout(60):
            while len(hub.hub.trusted_keys) < len(urls):  # noqa: ASYNC110 - it has nothing to wait on
                await asyncio.sleep(0.01)

        async def believed(key: SigningKey, named: str, claim: str) -> bool:
            data = {**DATA, "gateway": named}
            body = json.dumps(new_payment(embedded_chain).asking(confirm=True, purchaseData=data)).encode()
            answer = await post(hub, body, signed(body, key=key, idempotency_key=claim))
            assert answer.body["success"] is True, answer.body
            told = await purchase_data_of(hub, embedded_chain)
            assert told in (data, None)
            return told is not None

        found = [await believed(keys[0], url, f"first.{number}") for number, url in enumerate(urls)]
        assert found == [True, False, True]
        found = [await believed(keys[1], url, f"second.{number}") for number, url in enumerate(urls)]
        assert found == [False, True, False]


async def test_a_gateway_that_is_away_is_told_of_once_a_minute(
    hub: HubUnderTest, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is asked every two seconds, and whenever a stranger signs by a key that nobody knows."""
    away = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    keys = GatewayKeys(away, hub.hub.trusted_keys, seldom_seconds=0)
    for _ in range(6):
        await keys.ask(None)
    told = capsys.readouterr().out
    assert all(1 <= told.count(f"issuer={issuer} ") <= 2 for issuer in away), told  # a minute may have ended meanwhile


SELDOM_SECONDS = 3  # several times what three settlements take


async def test_a_gateway_that_signs_with_a_new_key_is_believed_at_once(
    tmp_path: Path, hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    """It puts a line on top of its ring and starts again; its hub asks for keys by itself every five minutes."""
    former, new = (SigningKey(name, Algorithm.ED25519, bytes([len(name)] * 32)) for name in ("k1", "k-2"))
    data = {**DATA, "gateway": f"http://127.0.0.1:{free_port()}"}
    port = int(str(data["gateway"]).rpartition(":")[2])

    async def believed(key: SigningKey, claim: str) -> bool:
        body = json.dumps(new_payment(embedded_chain).asking(confirm=True, purchaseData=data)).encode()
        answer = await post(hub, body, signed(body, key=key, idempotency_key=claim))
        assert answer.body["success"] is True, answer.body
        return bool(await purchase_data_of(hub, embedded_chain) == data)

    database = open_database(str(tmp_path / "gateway.db"))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        keys = GatewayKeys([str(data["gateway"])], hub.hub.trusted_keys, seldom_seconds=SELDOM_SECONDS)
        async with serving(issuer(database, clock_ms, keyring=[(former.key_id, former.secret)]), port):
            keeping = asyncio.create_task(keys.keep_fresh())
            stack.callback(keeping.cancel)
            async with asyncio.timeout(30):
                while not hub.hub.trusted_keys:  # noqa: ASYNC110 - it has nothing to wait on
                    await asyncio.sleep(0.01)
            assert await believed(former, "claim.1")
            assert not await believed(new, "claim.2")  # a stranger's, as far as its issuer says; it made the hub ask
        ring = [(key.key_id, key.secret) for key in (new, former)]
        async with serving(issuer(database, clock_ms, keyring=ring), port) as gateway:
            hub.hub.trusted_keys[OTHER_URL] = {new.key_id: OTHER.verifying_key()}  # another's key of that name
            assert await believed(new, "claim.3")
            assert await believed(former, "claim.4")
            asked, began = len(gateway.paths), time.monotonic()
            for number in range(3):  # who signs with keys of nobody makes it ask no more than now and then
                body = request_of(new_payment(embedded_chain))
                assert (await post(hub, body, signed(body, key=STRANGER, idempotency_key=f"{number}"))).body["success"]
            assert time.monotonic() - began < 2 * SELDOM_SECONDS, "who says that it is nobody's waits for nothing"
            body = json.dumps(new_payment(embedded_chain).asking(purchaseData=data)).encode()
            strangers = (post(hub, body, signed(body, key=STRANGER, idempotency_key=f"x.{at}")) for at in range(5))
            await asyncio.gather(*strangers)
            assert len(gateway.paths) - asked <= 1 + (time.monotonic() - began) / SELDOM_SECONDS
        assert await believed(former, "claim.5")
        began = time.monotonic()
        for number in range(3):  # nobody answers: one of them makes it ask
            assert not await believed(STRANGER, f"y.{number}")
        assert time.monotonic() - began < 2 * SELDOM_SECONDS


async def test_a_gateway_that_starts_behind_its_hub_is_believed_from_its_first_sale_on(
    tmp_path: Path, hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    key, port = SigningKey("k1", Algorithm.ED25519, bytes(range(32))), free_port()
    data = {**DATA, "gateway": f"http://127.0.0.1:{port}"}
    keys = GatewayKeys([str(data["gateway"])], hub.hub.trusted_keys, seldom_seconds=SELDOM_SECONDS)
    keeping = asyncio.create_task(keys.keep_fresh())
    try:
        await asyncio.sleep(0.5)  # nobody answers
        async with AsyncExitStack() as stack:
            database = open_database(str(tmp_path / "gateway.db"))
            stack.push_async_callback(database.close)
            ring = [(key.key_id, key.secret)]
            await stack.enter_async_context(serving(issuer(database, clock_ms, keyring=ring), port))
            body = json.dumps(new_payment(embedded_chain).asking(confirm=True, purchaseData=data)).encode()
            answer = await post(hub, body, signed(body, key=key, idempotency_key="claim.1"))
            assert answer.body["success"] is True, answer.body
            assert await purchase_data_of(hub, embedded_chain) == data
    finally:
        keeping.cancel()


async def test_who_never_answered_is_waited_for_while_he_may_be_starting_and_no_longer(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    key, never = SigningKey("k1", Algorithm.ED25519, bytes(range(32))), asyncio.Event()

    async def says_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await never.wait()
        writer.close()

    server = await asyncio.start_server(says_nothing, "127.0.0.1", 0)
    data = {**DATA, "gateway": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
    keys = GatewayKeys([str(data["gateway"])], hub.hub.trusted_keys, seldom_seconds=0, starting_seconds=3)
    keeping = asyncio.create_task(keys.keep_fresh())
    try:
        waited = []
        for number in range(2):
            body = json.dumps(new_payment(embedded_chain).asking(confirm=True, purchaseData=data)).encode()
            began = time.monotonic()
            answer = await post(hub, body, signed(body, key=key, idempotency_key=f"claim.{number}"))
            waited.append(time.monotonic() - began)
            assert answer.body["success"] is True, answer.body
        assert waited[0] > 4
        assert waited[1] < 3
    finally:
        keeping.cancel()
        never.set()
        server.close()
        await asyncio.sleep(0.1)  # its connections are closed by then


async def test_a_signature_under_another_label_is_somebody_else_s(
    trusting_hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    body = request_of(new_payment(embedded_chain))
    headers = {name: value.replace("tollkeeper=", "other=") for name, value in signed(body).items()}
    assert (await post(trusting_hub, body, headers)).body["success"] is True
    assert await purchase_data_of(trusting_hub, embedded_chain) is None


NOW = int(time.time())
WRONG: dict[str, Callable[[bytes], dict[str, str]]] = {
    "another key under the name": lambda body: signed(body, key=IMPOSTOR),
    "another path": lambda body: signed(body, path="/verify"),
    "another body": lambda body: {**signed(body), "Content-Digest": content_digest(body + b" ")},
    "another key of idempotency": lambda body: {**signed(body), "Idempotency-Key": "claim.2"},
    "no digest covered": lambda body: signed(body, covered=("@method", "@path", "idempotency-key")),
    "no idempotency key covered": lambda body: signed(body, covered=("@method", "@path", "content-digest")),
    "made in the future": lambda body: signed(body, created=NOW + 3600),
    "good for too long": lambda body: signed(body, lifetime_seconds=61),
}


@pytest.mark.parametrize("case", WRONG)
async def test_a_trusted_gateway_s_signature_that_does_not_fit_refuses_the_request(
    trusting_hub: HubUnderTest, embedded_chain: ChainUnderTest, case: str
) -> None:
    payment = new_payment(embedded_chain)
    body = request_of(payment)
    answer = await post(trusting_hub, body, WRONG[case](body))
    assert (answer.status, answer.code) == (401, "INVALID_SIGNATURE")
    assert await trusting_hub.status(payment) == "unknown"


@pytest.mark.parametrize("key", [KEY, STRANGER])
async def test_an_expired_request_starts_nothing(
    trusting_hub: HubUnderTest, embedded_chain: ChainUnderTest, key: SigningKey
) -> None:
    payment = new_payment(embedded_chain)
    body = request_of(payment)
    answer = await post(trusting_hub, body, signed(body, key=key, created=int(time.time()) - 61))
    assert (answer.status, answer.code) == (401, "INVALID_SIGNATURE")
    assert answer.body["error"]["details"]["reason"] == "signature_expired"
    assert await trusting_hub.status(payment) == "unknown"


async def test_an_expired_request_still_shows_what_its_key_shows(
    trusting_hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    body = request_of(new_payment(embedded_chain))
    first = await post(trusting_hub, body, signed(body))
    again = await post(trusting_hub, body, signed(body, created=int(time.time()) - 3600))
    assert (again.body["success"], again.body["transaction"]) == (True, first.body["transaction"])


@pytest.mark.parametrize("authority", ["evil.example", "hub.example:8443", "other.hub.example"])
async def test_what_a_gateway_asked_of_another_hub_is_refused_here(
    trusting_hub: HubUnderTest, embedded_chain: ChainUnderTest, authority: str
) -> None:
    """A hub that is not ours, and that the gateway asked, hands on what it was sent, under its own name or ours."""
    body = request_of(new_payment(embedded_chain))
    headers = signed(body, authority=authority)
    for host in (authority, "hub.example"):
        answer = await post(trusting_hub, body, headers | {"Host": host})
        assert (answer.status, answer.code) == (401, "INVALID_SIGNATURE")
        assert "hub_url must name it" in answer.body["error"]["message"]
    uncovered = signed(body, covered=("@method", "@path", "content-digest", "idempotency-key"))
    assert (await post(trusting_hub, body, uncovered)).status == 401


@pytest.mark.parametrize("authority", ["hub.example", "127.0.0.1:8402", "localhost:1", "[::1]:8402"])
async def test_a_gateway_may_name_the_hub_by_its_public_url_or_reach_it_over_its_own_machine(
    trusting_hub: HubUnderTest, embedded_chain: ChainUnderTest, authority: str
) -> None:
    body = request_of(new_payment(embedded_chain))
    answer = await post(trusting_hub, body, signed(body, authority=authority) | {"Host": authority})
    assert answer.body["success"] is True


async def test_a_header_that_must_be_single_is_refused_twice(
    trusting_hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    body = request_of(new_payment(embedded_chain))
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    answer = await trusting_hub.send("POST", "/settle", data=body, headers=headers)
    assert (answer.status, answer.code) == (400, "INVALID_PARAMETER")


async def test_a_request_that_expires_while_a_node_is_slow_starts_nothing(
    tmp_path: Path, embedded_chain: ChainUnderTest, chaos: ChaosNode
) -> None:
    """Its gateway has given it up by then, and told its buyer so: what was started now would be paid beside another."""
    late_ms = 0

    def slow(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        nonlocal late_ms
        late_ms = 100_000 if call["method"] == "eth_maxPriorityFeePerGas" else late_ms
        return answer

    chaos.falsify = slow
    nonce = embedded_chain.nonce(embedded_chain.wallets.relayer)
    async with run_hub(
        tmp_path, embedded_chain, rpc_url=chaos.url, trusted_keys=TRUSTED, now_ms=lambda: clock_ms() + late_ms
    ) as hub:
        await asyncio.sleep(2.1)  # what was asked for at the start is remembered no more
        late_ms = 0
        payment = new_payment(embedded_chain)
        body = request_of(payment)
        answer = await post(hub, body, signed(body))
        assert late_ms
        assert (answer.status, answer.code) == (401, "INVALID_SIGNATURE")
        assert await hub.status(payment) == "unknown"
        assert embedded_chain.nonce(embedded_chain.wallets.relayer) == nonce
        assert (await hub.settle(payment)).body["success"] is True  # anybody else's request may


@pytest.mark.usefixtures("patient")
async def test_who_got_too_late_in_company_holds_up_none_of_the_others(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest
) -> None:
    chain, late_ms = anvil_fiat_token, 0
    plant(chain, Via.BATCHER)
    wallets = payers(chain, 4)
    payments = [new_payment(chain, signer=wallet) for wallet in wallets]
    bodies = [request_of(payment) for payment in payments[:3]]

    def slow(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        nonlocal late_ms
        late_ms = 30_000 if call["method"] == "eth_getCode" and call["params"][0] in addresses else late_ms
        return answer

    addresses = {wallet.address for wallet in wallets}
    async with run_chaos(chain.url) as chaos:
        config = {"batch_queue_depth": 1, "batch_items_max": len(payments)}
        options: dict[str, Any] = {"rpc_url": chaos.url, "trusted_keys": TRUSTED, "config": config}
        async with run_hub(tmp_path, chain, now_ms=lambda: clock_ms() + late_ms, **options) as hub:
            chain.rpc.call("evm_setAutomine", False)
            first = asyncio.create_task(hub.settle(new_payment(chain)))
            await one_under_way(hub)
            chaos.falsify = slow
            headers = [
                signed(body, idempotency_key=f"claim-{number}.1", lifetime_seconds=20 if number == 1 else 60)
                for number, body in enumerate(bodies)
            ]
            tasks = [asyncio.create_task(post(hub, body, head)) for body, head in zip(bodies, headers, strict=True)]
            tasks.append(asyncio.create_task(hub.settle(payments[3])))  # nobody's request, which waited for so long
            async with asyncio.timeout(30):
                while int(chain.rpc.call("txpool_status")["pending"], 16) < 2:  # noqa: ASYNC110 - a process
                    await asyncio.sleep(0.02)
            chain.rpc.call("evm_setAutomine", True)
            chain.rpc.call("evm_mine")
            answers = await asyncio.gather(first, *tasks)
            assert [answer.body.get("success") for answer in answers] == [True, True, None, True, None]
            assert [answers[2].code, answers[4].code] == ["INVALID_SIGNATURE", "UNAVAILABLE"]
            assert answers[1].body["transaction"] == answers[3].body["transaction"]
            statuses = [await hub.status(payment) for payment in payments]
            assert statuses == ["success", "unknown", "success", "unknown"]
