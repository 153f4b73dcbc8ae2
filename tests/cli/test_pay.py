"""`tollkeeper pay`: a link is paid on either chain, up to a limit, and what was bought is not lost."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from solders.keypair import Keypair

from tests.cli.processes import clean_environment, command, finished
from tests.cli.test_hostile_servers import asking
from tests.interop.local_server import Reply, Request, serving
from tests.interop.stack import Stack, sandbox
from tollkeeper.client.payments import authorization_for
from tollkeeper.core.networks import NETWORKS
from tollkeeper.sandbox.wallets import derive_solana_wallets, derive_wallets

SOLANA = "solana-devnet"
USDC_THERE = NETWORKS[SOLANA].usdc.address
ON_SOLANA = {
    "payTo": derive_solana_wallets().owner.address,
    "extra": {"feePayer": derive_solana_wallets().fee_payers[0].address},
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with sandbox(tmp_path_factory.mktemp("sandbox") / "log.txt") as running:
        yield running


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def gate(stack: Stack, **fields: object) -> str:
    """A link that is paid on both chains, the EVM one first."""
    accepts = [{"network": SOLANA, "paymentAddress": stack.solana.pay_to}]
    terms = {"targetUrl": stack.target_url, "price": "0.02", "accepts": accepts, **fields}
    url: str = stack.create_gate(**terms)["accessUrl"]
    return f"{url}?city=Bergen"


def test_a_key_of_either_family_pays_and_its_credits_are_spent_by_their_token(stack: Stack, tmp_path: Path) -> None:
    wallets = derive_solana_wallets().buyer
    keys = {
        "base-sepolia": derive_wallets().buyer.private_key_hex,
        SOLANA: json.dumps(list(wallets.seed + bytes(Keypair.from_seed(wallets.seed).pubkey()))),
    }
    for network, key in keys.items():
        url = gate(stack, credits=2)
        arguments = ("--key-file", written(tmp_path / network, key), "--network", network)
        paid = finished("pay", url, *arguments, "--rpc-url", stack.solana.rpc_url, is_forked=False)
        assert paid.returncode == 0, paid.stderr
        assert json.loads(paid.stdout)["city"] == "Bergen"
        told = dict(line.rsplit(" ", 1) for line in paid.stderr.splitlines() if " " in line)
        assert (told["network"], told["credits left"]) == (network, "1")
        again = finished("pay", url, *arguments, "--credit-token", told["credit token"])
        assert again.returncode == 0, again.stderr
        assert "paying" not in again.stderr
        assert "credits left 0" in again.stderr


def test_the_test_wallets_pay_where_the_gate_asks_first(stack: Stack) -> None:
    for network, address in (("base-sepolia", stack.pay_to), (SOLANA, stack.solana.pay_to)):
        url = gate(stack, network=network, paymentAddress=address, accepts=[])
        paid = finished("pay", url, "--test-wallet", "--rpc-url", stack.solana.rpc_url)
        assert paid.returncode == 0, paid.stderr
        assert f"paying 0.02 USDC on {network}" in paid.stderr


@pytest.mark.parametrize("version", [1, 2])
def test_a_wallet_of_the_other_family_is_told_where_it_is_to_be_paid(
    stack: Stack, tmp_path: Path, version: int
) -> None:
    key = written(tmp_path / "solana.key", stack.solana.buyer_key)
    with serving(lambda _request: asking(entry(), version)) as server:
        done = finished("pay", server.url, "--key-file", key)
    said = "it is to be paid on base-sepolia, and not by this wallet there: name another wallet, or by --network"
    assert (done.returncode, said in done.stderr.replace("\n", " ")) == (1, True), done.stderr


def test_credits_that_the_wallet_holds_are_spent_by_themselves(stack: Stack) -> None:
    url = gate(stack, credits=2)
    first, second, third = (finished("pay", url, "--test-wallet") for _ in range(3))
    assert [done.returncode for done in (first, second, third)] == [0, 0, 0], second.stderr
    assert "paid now nothing" not in first.stderr + third.stderr
    assert "paid now nothing: it used a credit that the wallet holds" in second.stderr
    assert ["credits left 1" in first.stderr, "credits left 0" in second.stderr, "credits left 1" in third.stderr] == [
        True
    ] * 3


def test_a_payment_of_version_2_of_unknown_outcome_is_sent_again_and_handed_over() -> None:
    pending = {"error": {"type": "payment", "code": "SETTLEMENT_PENDING", "message": "wait"}}
    told = {"success": False, "errorReason": "settlement_pending", "transaction": "0xabc"}
    shown = {"PAYMENT-RESPONSE": base64.b64encode(json.dumps(told).encode()).decode(), "Retry-After": "0"}
    answers = [asking(entry(), 2), Reply(503, pending, shown), Reply(500, {}, {})]
    with serving(lambda _request: answers.pop(0)) as server:
        done = finished("pay", server.url, "--test-wallet")
    assert done.returncode == 1
    sent = [request.headers.get("payment-signature") for request in server.received]
    assert (sent[0], len(set(sent[1:])), len(sent)) == (None, 1, 3)
    assert f"PAYMENT-SIGNATURE: {sent[1]}" in done.stderr
    with serving(lambda _request: Reply(200, {})) as server:
        done = finished("pay", server.url, "--test-wallet", "--header", f"PAYMENT-SIGNATURE: {sent[1]}")
    assert (done.returncode, len(server.received)) == (0, 1)
    assert server.received[0].headers["payment-signature"] == sent[1]


def test_a_body_and_headers_reach_the_target(stack: Stack, tmp_path: Path) -> None:
    url = gate(stack, targetUrl=stack.target_url.replace("/weather", "/echo"), method="POST", headerAuthMode="none")
    body = written(tmp_path / "order.json", '{"quantity": 3}')
    more = ("--method", "POST", "--data", f"@{body}", "--header", "X-Colour: blue", "--test-wallet")
    paid = finished("pay", url, *more)
    assert paid.returncode == 0, paid.stderr
    assert "quantity" in paid.stdout
    assert "blue" in paid.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "either --key-file or --test-wallet"),
        (("--test-wallet", "--max", "nothing"), 2, "--max must be a decimal USDC amount"),
        (("--test-wallet", "--network", "dogecoin"), 2, "--network: it is no network of this version: base,"),
        (("--test-wallet", "--header", "X"), 2, "Name: value"),
        (("--test-wallet", "--header", "X: a\nY: b"), 2, "--header: a header has no control characters"),
        (("--test-wallet", "--data", "@/nowhere/at/all"), 2, "--data: /nowhere/at/all cannot be read (No such file"),
        (("--test-wallet", "--max", "0.01"), 1, "it costs 0.02 USDC, which is more than --max allows (0.01)"),
        (("--key-file", "{solana_key}"), 1, "name a node that tells it"),  # version 2 offers Solana beside Base
        (("--test-wallet", "--network", SOLANA), 1, "name a node that tells it"),
        (("--test-wallet", "--network", SOLANA, "--rpc-url", "{hub}/supported"), 1, "405|METHOD_NOT_ALLOWED"),
        (
            ("--test-wallet", "--network", SOLANA, "--rpc-url", "http://127.0.0.1:9"),
            1,
            "127.0.0.1:9 cannot be reached (Connection refused)",
        ),
        (("--test-wallet", "--network", SOLANA, "--rpc-url", "{evm}"), 1, "the gateway refused|no Solana node"),
    ],
)
def test_what_cannot_be_paid_is_refused_before_anything_is_signed(
    arguments: tuple[str, ...], code: int, said: str, stack: Stack, tmp_path: Path
) -> None:
    key = written(tmp_path / "solana.key", stack.solana.buyer_key)
    filled = [one.format(hub=stack.hub_url, evm=stack.rpc_url, solana_key=key) for one in arguments]
    done = finished("pay", gate(stack), *filled)
    assert done.returncode == code, done.stderr
    assert any(one in done.stderr.replace("\n", " ") for one in said.split("|")), done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:9/x", "127.0.0.1:9 cannot be reached (Connection refused)"),
        ("https://nope.invalid/x", "the name nope.invalid cannot be resolved"),
        ("https://{there}/x", "it does not speak TLS as it should"),
    ],
)
def test_why_there_is_no_answer_is_said_in_words(stack: Stack, url: str, why: str) -> None:
    url = url.format(there=stack.gateway_url.removeprefix("http://"))
    done = finished("pay", url, "--test-wallet")
    assert done.returncode == 1
    assert f"no answer from {url}: {why}" in done.stderr.replace("\n", " ")


def test_what_is_no_url_is_said_at_once() -> None:
    for url in ("nonsense", "ftp://127.0.0.1/x", "127.0.0.1:8402/weather"):
        done = finished("pay", url, "--test-wallet")
        assert (done.returncode, f"{url} does not begin with http://" in done.stderr) == (2, True)


def test_a_network_on_which_the_gate_is_not_paid_is_refused_by_the_gate(stack: Stack) -> None:
    done = finished("pay", gate(stack), "--test-wallet", "--network", "solana-mainnet")
    assert done.returncode == 1
    assert (
        "refused INVALID_NETWORK: this PayGate is not paid on that network (base-sepolia, solana-devnet)" in done.stderr
    )


def entry(**changes: object) -> dict[str, Any]:
    network = NETWORKS["base-sepolia"]
    return {
        "scheme": "exact",
        "network": "base-sepolia",
        "maxAmountRequired": "1000",
        "resource": "http://127.0.0.1/",
        "payTo": "0x" + "71" * 20,
        "maxTimeoutSeconds": 60,
        "asset": network.usdc.address,
        "extra": {"name": "USD Coin", "version": "2"},
        **changes,
    }


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"x402Version": 2, "accepts": [entry()]},
        {"x402Version": 1, "accepts": "application/json"},
        {"x402Version": 1, "accepts": ["application/json", {}, None]},
        {"x402Version": 1, "accepts": [entry(asset="0x" + "72" * 20)]},
        {"x402Version": 1, "accepts": [entry(network=SOLANA, asset=USDC_THERE.replace("z", "Z"), **ON_SOLANA)]},
        {"x402Version": 1, "accepts": [entry(scheme="upto")]},
        {"x402Version": 1, "accepts": [entry(maxAmountRequired="-5")]},
        {"x402Version": 1, "accepts": [entry(maxAmountRequired="1e3")]},
        {"x402Version": 1, "accepts": [entry(maxAmountRequired="1_000")]},
        {"x402Version": 1, "accepts": [entry(maxAmountRequired=" 1000")]},
        {"x402Version": 1, "accepts": [entry(maxAmountRequired=True)]},
        {"x402Version": 1, "accepts": [entry(maxAmountRequired=5.7)]},
        {"x402Version": 1, "accepts": [entry(extra=None)]},
        {"x402Version": 1, "accepts": [entry(payTo=7)]},
    ],
)
def test_a_402_that_asks_for_anything_but_usdc_is_not_paid(body: dict[str, Any]) -> None:
    with serving(lambda _request: Reply(402, body)) as server:
        done = finished("pay", server.url, "--test-wallet")
    assert done.returncode == 1
    assert "402" in done.stderr
    assert len(server.received) == 1


def test_a_payment_of_unknown_outcome_is_sent_again_and_never_signed_anew() -> None:
    pending = {"error": {"type": "payment", "code": "SETTLEMENT_PENDING", "message": "wait"}}
    receipt = base64.b64encode(b'{"success": true, "transaction": "0xabc"}').decode()
    answers = [
        Reply(402, {"x402Version": 1, "accepts": [entry()]}),
        Reply(503, pending, {"Retry-After": "0", "X-Credit-Token": "pur_1.abc"}),
        Reply(503, pending, {"Retry-After": "0"}),
        Reply(200, {"served": True}, {"X-Payment-Response": receipt, "X-Credits-Remaining": "2"}),
    ]

    def answer(_request: Request) -> Reply:
        return answers.pop(0)

    with serving(answer) as server:
        done = finished("pay", server.url, "--test-wallet")
    assert done.returncode == 0, done.stderr
    assert "transaction 0xabc" in done.stderr
    sent = [request.headers.get("x-payment") for request in server.received]
    assert sent[0] is None
    assert len(set(sent[1:])) == 1
    assert done.stderr.count("SETTLEMENT_PENDING: wait; sending the same payment again") == 1
    # The last answer tells no token, because it did not buy: it is kept, and shown where it alone counts.
    assert "credits left 2\ncredit token pur_1.abc\n" in done.stderr
    tokens = [request.headers.get("x-credit-token") for request in server.received]
    assert tokens == [None, None, "pur_1.abc", "pur_1.abc"]


@pytest.mark.parametrize("code", ["SETTLEMENT_PENDING", "UNAVAILABLE"])
def test_a_target_that_speaks_as_a_gateway_uses_one_credit(stack: Stack, code: str) -> None:
    """Its answer has a receipt, as every one behind a payment: the outcome of the payment is known."""
    said = {"error": {"type": "payment", "code": code, "message": "wait"}}
    with serving(lambda _request: Reply(503, said, {"Retry-After": "0"})) as target:
        done = finished("pay", gate(stack, targetUrl=target.url, credits=5), "--test-wallet")
        asked = [request for request in target.received if "x-purchase-id" in request.headers]
    assert (done.returncode, len(asked)) == (1, 1), done.stderr
    assert "credits left 4" in done.stderr


def test_no_token_is_shown_of_a_payment_that_was_refused_at_last() -> None:
    pending = {"error": {"type": "payment", "code": "SETTLEMENT_PENDING", "message": "wait"}}
    refused = {"error": {"type": "payment", "code": "PAYMENT_EXPIRED", "message": "too late"}}
    answers = [
        Reply(402, {"x402Version": 1, "accepts": [entry()]}),
        Reply(503, pending, {"Retry-After": "0", "X-Credit-Token": "pur_1.abc"}),
        Reply(402, refused),
    ]
    with serving(lambda _request: answers.pop(0)) as server:
        done = finished("pay", server.url, "--test-wallet")
    assert done.returncode == 1
    assert "refused PAYMENT_EXPIRED: too late" in done.stderr
    assert "pur_1.abc" not in done.stderr


def test_a_payment_whose_answer_is_lost_is_handed_to_its_buyer() -> None:
    """Whether it was carried out nobody knows here, so the very same one is to be sent again."""
    asked = {"x402Version": 1, "accepts": [entry()]}
    pending = {"error": {"type": "payment", "code": "SETTLEMENT_PENDING", "message": "wait"}}

    def answer(request: Request) -> Reply:
        if "x-credit-token" in request.headers:
            raise ConnectionResetError
        if "x-payment" in request.headers:
            return Reply(503, pending, {"Retry-After": "0", "X-Credit-Token": "pur_1.abc"})
        return Reply(402, asked)

    with serving(answer) as server:
        done = finished("pay", server.url, "--test-wallet")
    assert done.returncode == 1
    assert "send this same payment again" in done.stderr
    (paid,) = {request.headers["x-payment"] for request in server.received if "x-payment" in request.headers}
    assert f"X-Payment: {paid}\nX-Credit-Token: pur_1.abc" in done.stderr


def test_a_payment_that_somebody_before_the_gateway_answered_is_handed_to_its_buyer() -> None:
    answers = [
        Reply(402, {"x402Version": 1, "accepts": [entry()]}),
        Reply(504, {"what": "a proxy waited no longer"}),
    ]
    with serving(lambda _request: answers.pop(0)) as server:
        done = finished("pay", server.url, "--test-wallet")
    assert (done.returncode, "waited no longer" in done.stdout) == (1, True)
    assert "status 504" in done.stderr
    paid = server.received[1].headers["x-payment"]
    assert f"send this same payment again, do not sign a new one\nX-Payment: {paid}" in done.stderr


@pytest.mark.parametrize(
    ("ending", "under"),
    [
        *((ending, "--default-signal=INT") for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)),
        (signal.SIGTERM, "--ignore-signal=INT"),  # as what a shell runs in a script's background
    ],
)
def test_a_payment_whose_buyer_stops_waiting_is_handed_to_him(ending: signal.Signals, under: str) -> None:
    pending = {"error": {"type": "payment", "code": "SETTLEMENT_PENDING", "message": "wait"}}
    is_waiting = threading.Event()

    def answer(request: Request) -> Reply:
        if "x-payment" not in request.headers:
            return Reply(402, {"x402Version": 1, "accepts": [entry()]})
        if "x-credit-token" in request.headers:
            is_waiting.set()
            return Reply(503, pending, {"Retry-After": "10"})
        return Reply(503, pending, {"Retry-After": "0", "X-Credit-Token": "pur_1.abc"})

    with serving(answer) as server:
        words = ["env", under, *command("pay", server.url, "--test-wallet")]
        with subprocess.Popen(words, env=clean_environment(), stderr=subprocess.PIPE, text=True) as paying:
            assert is_waiting.wait(30)
            paying.send_signal(ending)
            _, wrote = paying.communicate(timeout=30)
    assert paying.returncode == 130
    assert "send this same payment again" in wrote
    (paid,) = {request.headers["x-payment"] for request in server.received if "x-payment" in request.headers}
    assert f"X-Payment: {paid}\nX-Credit-Token: pur_1.abc" in wrote
    assert "Traceback" not in wrote


def test_a_buyer_who_was_started_to_outlive_his_terminal_does() -> None:
    is_asked = threading.Event()

    def answer(request: Request) -> Reply:
        if "x-payment" not in request.headers:
            return Reply(402, {"x402Version": 1, "accepts": [entry()]})
        is_asked.set()
        time.sleep(1)
        return Reply(200, {})

    with serving(answer) as server:
        words = ["nohup", *command("pay", server.url, "--test-wallet")]
        with subprocess.Popen(words, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as paying:
            assert is_asked.wait(30)
            paying.send_signal(signal.SIGHUP)
            paying.communicate(timeout=30)
    assert paying.returncode == 0


@pytest.mark.parametrize("said_to", ["a full disk", "nobody"])
def test_what_was_bought_is_told_though_its_answer_cannot_be_printed(stack: Stack, said_to: str) -> None:
    words = command("pay", gate(stack, credits=2), "--test-wallet")
    with contextlib.ExitStack() as opened:
        if said_to == "nobody":
            reading, writing = os.pipe()
            os.close(reading)
            out = opened.enter_context(os.fdopen(writing, "wb"))
        else:
            out = opened.enter_context(open("/dev/full", "wb"))  # noqa: PTH123 - a device
        done = subprocess.run(
            words, env=clean_environment(), stdout=out, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    told = dict(line.rsplit(" ", 1) for line in done.stderr.splitlines() if " " in line)
    assert (told["status"], told["credits left"], told["credit token"][:4]) == ("200", "1", "pur_")
    assert "was not printed" in done.stderr


def test_an_empty_credit_token_is_refused_before_anything_is_paid_anew() -> None:
    done = finished("pay", "http://127.0.0.1:9/x", "--test-wallet", "--credit-token", "")
    assert (done.returncode, "--credit-token: it is empty" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("status", [200, 402])
def test_a_payment_that_was_handed_over_is_sent_again_and_none_is_signed_beside_it(status: int) -> None:
    pending = {"error": {"type": "payment", "code": "SETTLEMENT_PENDING", "message": "wait"}}
    used_up = {"x402Version": 1, "accepts": [entry()], "error": "used up"}
    answers = [Reply(503, pending, {"Retry-After": "0"}), Reply(status, used_up), Reply(200, {"paid": "twice"})]
    handed = ("--header", "X-Payment: abc", "--header", "x-credit-token: pur_1.abc")
    with serving(lambda _request: answers.pop(0)) as server:
        done = finished("pay", server.url, "--test-wallet", *handed)
    assert (done.returncode, "paying" in done.stderr) == (int(status != 200), False), done.stderr
    sent = [(one.headers["x-payment"], one.headers["x-credit-token"]) for one in server.received]
    assert sent == [("abc", "pur_1.abc")] * 2


def test_a_refusal_says_why_and_ends_with_1(stack: Stack, tmp_path: Path) -> None:
    poor = written(tmp_path / "poor.key", "0x" + "55" * 32)
    done = finished("pay", gate(stack), "--key-file", poor)
    assert done.returncode == 1
    assert "refused INSUFFICIENT_FUNDS" in done.stderr
    poor = written(tmp_path / "poor.json", str(Keypair.from_seed(b"\x55" * 32)))
    there = ("--network", SOLANA, "--rpc-url", stack.solana.rpc_url)
    done = finished("pay", gate(stack), "--key-file", poor, *there, is_forked=False)
    assert "refused INSUFFICIENT_FUNDS" in done.stderr
    assert [one["network"] for one in json.loads(done.stdout)["accepts"]] == [SOLANA], "what is asked where it was paid"


def test_nothing_is_signed_for_longer_than_ten_minutes() -> None:
    asked = {**entry(), "maxTimeoutSeconds": 10**80}
    assert authorization_for(asked, "0x" + "ab" * 20, bytes(32), 1_000).valid_before == 1_600
