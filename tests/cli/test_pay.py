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
from tests.cli.test_hostile_servers import asking, message
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


def user(home: Path) -> dict[str, str]:
    """One user, who keeps what was bought from command to command."""
    return {"XDG_STATE_HOME": str(home / "state")}


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


def test_a_payment_of_version_2_of_unknown_outcome_is_sent_again_by_the_next_command(tmp_path: Path) -> None:
    pending = {"error": {"type": "payment", "code": "SETTLEMENT_PENDING", "message": "wait"}}
    told = {"success": False, "errorReason": "settlement_pending", "transaction": "0xabc"}
    shown = {"PAYMENT-RESPONSE": base64.b64encode(json.dumps(told).encode()).decode(), "Retry-After": "0"}
    answers = [asking(entry(), 2), Reply(503, pending, shown), Reply(500, {}, {}), Reply(200, {})]
    with serving(lambda _request: answers.pop(0)) as server:
        first, second = (finished("pay", server.url, "--test-wallet", environ=user(tmp_path)) for _ in range(2))
    assert (first.returncode, second.returncode) == (5, 0)
    assert "It is not known whether you were charged 0.001 USDC; the payment is kept." in first.stderr
    sent = [request.headers.get("payment-signature") for request in server.received]
    assert (sent[0], len(set(sent[1:])), len(sent)) == (None, 1, 4)


def test_a_body_and_headers_reach_the_target(stack: Stack, tmp_path: Path) -> None:
    url = gate(stack, targetUrl=stack.target_url.replace("/weather", "/echo"), method="POST", headerAuthMode="none")
    body = written(tmp_path / "order.json", '{"quantity": 3}')
    more = ("--data", f"@{body}", "--header", "X-Colour: blue", "--test-wallet")
    paid = finished("pay", url, *more)
    assert paid.returncode == 0, paid.stderr
    assert "quantity" in paid.stdout
    assert "blue" in paid.stdout


@pytest.mark.parametrize(
    ("words", "method", "content_type"),
    [
        (("--data", '{"a": 1}'), "POST", "application/json"),
        (("--data", "a=1"), "POST", "text/plain; charset=utf-8"),
        (("--data", "7", "--method", "PUT", "--header", "content-type: text/csv"), "PUT", "text/csv"),
        ((), "GET", None),
    ],
)
def test_data_is_posted_and_json_says_so(words: tuple[str, ...], method: str, content_type: str | None) -> None:
    with serving(lambda _request: Reply(200, {})) as server:
        done = finished("pay", server.url, "--test-wallet", *words)
    assert done.returncode == 0, done.stderr
    assert [(one.method, one.headers.get("content-type")) for one in server.received] == [(method, content_type)]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "either --key-file or --test-wallet"),
        (("--test-wallet", "--max", "nothing"), 2, "--max must be a decimal USDC amount"),
        (("--test-wallet", "--network", "dogecoin"), 2, "--network: it is no network of this version: base,"),
        (("--test-wallet", "--header", "X"), 2, "Name: value"),
        (("--test-wallet", "--header", "X: a\nY: b"), 2, "--header: a header has no control characters"),
        (("--test-wallet", "--header", "X-Payment: abc"), 2, "--header: X-Payment is this command's own"),
        (("--test-wallet", "--max-per-day", "0.01"), 1, "--max-per-day allows 0.01. You were not charged."),
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
    assert (done.returncode, len(asked)) == (4, 1), done.stderr
    assert "credits left 4" in done.stderr
    assert "You were charged 0.02 USDC." in done.stderr


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
    assert "You were not charged." in done.stderr
    assert "pur_1.abc" not in done.stderr


def test_a_payment_whose_answer_is_lost_is_sent_again_with_its_token_by_the_next_command(tmp_path: Path) -> None:
    """Whether it was carried out nobody knows here, so the very same one is to be sent again."""
    asked = {"x402Version": 1, "accepts": [entry()]}
    pending = {"error": {"type": "payment", "code": "SETTLEMENT_PENDING", "message": "wait"}}
    is_lost = True

    def answer(request: Request) -> Reply:
        if "x-credit-token" in request.headers:
            if is_lost:
                raise ConnectionResetError
            return Reply(200, {})
        if "x-payment" in request.headers:
            return Reply(503, pending, {"Retry-After": "0", "X-Credit-Token": "pur_1.abc"})
        return Reply(402, asked)

    with serving(answer) as server:
        first = finished("pay", server.url, "--test-wallet", environ=user(tmp_path))
        is_lost = False
        second = finished("pay", server.url, "--test-wallet", environ=user(tmp_path))
    assert (first.returncode, second.returncode) == (5, 0), second.stderr
    assert "It is not known whether you were charged" in first.stderr
    assert len({request.headers["x-payment"] for request in server.received if "x-payment" in request.headers}) == 1
    assert server.received[-1].headers["x-credit-token"] == "pur_1.abc"


def test_a_payment_that_came_too_late_was_not_charged_and_another_one_is_signed(tmp_path: Path) -> None:
    expired = {"error": {"type": "payment", "code": "PAYMENT_EXPIRED", "message": "too late"}, "x402Version": 1}
    asked = {"x402Version": 1, "accepts": [entry()]}
    answers = [Reply(402, asked), Reply(504, {}), Reply(402, {**asked, **expired}), Reply(402, asked), Reply(200, {})]
    with serving(lambda _request: answers.pop(0)) as server:
        first, second = (finished("pay", server.url, "--test-wallet", environ=user(tmp_path)) for _ in range(2))
    assert (first.returncode, second.returncode) == (5, 0), second.stderr
    assert "that payment was refused, and not charged: PAYMENT_EXPIRED: too late" in second.stderr
    sent = [request.headers.get("x-payment") for request in server.received]
    assert (sent[1] == sent[2] != sent[4], sent[0], sent[3]) == (True, None, None)


def test_a_payment_that_somebody_before_the_gateway_answered_is_kept() -> None:
    answers = [
        Reply(402, {"x402Version": 1, "accepts": [entry()]}),
        Reply(504, {"what": "a proxy waited no longer"}),
    ]
    with serving(lambda _request: answers.pop(0)) as server:
        done = finished("pay", server.url, "--test-wallet")
    assert (done.returncode, "waited no longer" in done.stdout) == (5, True)
    assert "status 504" in done.stderr
    assert "Run the same command again: it sends this payment and signs no other one." in done.stderr


@pytest.mark.parametrize(
    ("ending", "under"),
    [
        *((ending, "--default-signal=INT,HUP,TERM") for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)),
        (signal.SIGTERM, "--ignore-signal=INT"),  # as what a shell runs in a script's background
    ],
)
def test_a_payment_whose_buyer_stops_waiting_is_kept(ending: signal.Signals, under: str, tmp_path: Path) -> None:
    pending = {"error": {"type": "payment", "code": "SETTLEMENT_PENDING", "message": "wait"}}
    is_waiting, is_known = threading.Event(), threading.Event()

    def answer(request: Request) -> Reply:
        if is_known.is_set():
            return Reply(200, {})
        if "x-payment" not in request.headers:
            return Reply(402, {"x402Version": 1, "accepts": [entry()]})
        if "x-credit-token" in request.headers:
            is_waiting.set()
            return Reply(503, pending, {"Retry-After": "10"})
        return Reply(503, pending, {"Retry-After": "0", "X-Credit-Token": "pur_1.abc"})

    with serving(answer) as server:
        words = ["env", under, *command("pay", server.url, "--test-wallet")]
        with subprocess.Popen(
            words, env=clean_environment(user(tmp_path)), stderr=subprocess.PIPE, text=True
        ) as paying:
            assert is_waiting.wait(30)
            paying.send_signal(ending)
            _, wrote = paying.communicate(timeout=30)
        is_known.set()
        again = finished("pay", server.url, "--test-wallet", environ=user(tmp_path))
    assert paying.returncode == 130
    assert "Run the same command again: it sends this payment and signs no other one." in wrote
    assert "Traceback" not in wrote
    assert len({request.headers["x-payment"] for request in server.received if "x-payment" in request.headers}) == 1
    assert again.returncode == 0, again.stderr
    assert server.received[-1].headers["x-credit-token"] == "pur_1.abc"


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
    assert (done.returncode, "Traceback" in done.stderr) == (4, False), done.stderr
    told = dict(line.rsplit(" ", 1) for line in done.stderr.splitlines() if " " in line)
    assert (told["status"], told["credits left"], told["credit token"][:4]) == ("200", "1", "pur_")
    assert "was not printed" in done.stderr


def test_an_empty_credit_token_is_refused_before_anything_is_paid_anew() -> None:
    done = finished("pay", "http://127.0.0.1:9/x", "--test-wallet", "--credit-token", "")
    assert (done.returncode, "--credit-token: it is empty" in done.stderr) == (2, True), done.stderr


def test_a_refusal_says_why_and_ends_with_1(stack: Stack, tmp_path: Path) -> None:
    poor = written(tmp_path / "poor.key", "0x" + "55" * 32)
    done = finished("pay", gate(stack), "--key-file", poor)
    assert done.returncode == 1
    assert "refused INSUFFICIENT_FUNDS" in done.stderr
    assert "You were not charged." in done.stderr
    poor = written(tmp_path / "poor.json", str(Keypair.from_seed(b"\x55" * 32)))
    there = ("--network", SOLANA, "--rpc-url", stack.solana.rpc_url)
    done = finished("pay", gate(stack), "--key-file", poor, *there, is_forked=False)
    assert "refused INSUFFICIENT_FUNDS" in done.stderr
    assert [one["network"] for one in json.loads(done.stdout)["accepts"]] == [SOLANA], "what is asked where it was paid"


def test_what_was_bought_is_kept_for_its_user_alone_and_spent_before_anything_is_paid_again(
    stack: Stack, tmp_path: Path
) -> None:
    there = ("--test-wallet", "--network", SOLANA, "--rpc-url", stack.solana.rpc_url)
    url, other = gate(stack, credits=2), gate(stack, credits=2)
    before = stack.solana.balance_micro(stack.solana.buyer_address)
    done = [finished("pay", one, *there, environ=user(tmp_path)) for one in (url, url, other, url)]
    assert [one.returncode for one in done] == [0] * 4, [one.stderr for one in done]
    assert ["paying 0.02 USDC" in one.stderr for one in done] == [True, False, True, True]
    assert before - stack.solana.balance_micro(stack.solana.buyer_address) == 60_000
    kept = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert len(kept) == 3  # one purchase of each link has a credit left; and what was spent today
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    assert {path.parent.stat().st_mode & 0o777 for path in kept} == {0o700}
    assert (tmp_path / "state" / "tollkeeper").stat().st_mode & 0o777 == 0o700


def test_a_wallet_logs_in_by_itself_where_the_gate_wants_it(stack: Stack, tmp_path: Path) -> None:
    for terms in ({"requireAuth": True}, {"creditBinding": "wallet"}, {"creditBinding": "token"}):
        url = gate(stack, credits=2, **terms)
        for is_paid in (True, False):
            done = finished("pay", url, "--test-wallet", environ=user(tmp_path))
            assert (done.returncode, "paying" in done.stderr) == (0, is_paid), done.stderr


def test_credits_of_a_payment_that_counts_no_more_are_found_by_a_login() -> None:
    """Its answer was lost on the way: the payment was served once, and its token reached nobody."""
    refusal = {"error": {"type": "authentication", "code": "CREDIT_TOKEN_REQUIRED", "message": "use the token"}}
    receipt = base64.b64encode(b'{"success": true, "transaction": "0xabc"}').decode()
    held = [
        {"slug": "other", "remaining": 2, "creditToken": "pur_0.abc"},
        {"slug": "weather", "remaining": 2, "creditToken": "pur_1.abc"},
    ]

    def answer(request: Request) -> Reply:
        match request.path.partition("?")[0].rpartition("/")[2]:
            case "message":
                return Reply(200, {"message": message(server.url, derive_wallets().buyer.address)})
            case "login":
                return Reply(200, {"accessToken": "abc"})
            case "credits":
                return Reply(200, {"data": held if request.headers.get("authorization") == "Bearer abc" else []})
        if request.headers.get("x-credit-token") == "pur_1.abc":
            return Reply(200, {}, {"X-Payment-Response": receipt, "X-Credits-Remaining": "1"})
        paid = "x-payment" in request.headers
        return Reply(403, refusal) if paid else Reply(402, {"x402Version": 1, "accepts": [entry()]})

    with serving(answer) as server:
        done = finished("pay", f"{server.url}/weather?city=Oslo", "--test-wallet")
    assert (done.returncode, "credits left 1" in done.stderr) == (0, True), done.stderr


def test_a_day_s_limit_counts_what_was_charged_and_nothing_else(stack: Stack, tmp_path: Path) -> None:
    poor = written(tmp_path / "poor.key", "0x" + "56" * 32)
    limit = ("--max-per-day", "0.04")
    refused = [finished("pay", gate(stack), "--key-file", poor, *limit, environ=user(tmp_path)) for _ in range(3)]
    assert all("refused INSUFFICIENT_FUNDS" in one.stderr for one in refused), refused[-1].stderr
    paid = [finished("pay", gate(stack), "--test-wallet", *limit, environ=user(tmp_path)) for _ in range(3)]
    assert [one.returncode for one in paid] == [0, 0, 1]
    assert "The wallet paid 0.04 on base-sepolia in the last 24 hours" in paid[2].stderr


def test_one_line_of_json_tells_the_answer_and_its_cost(stack: Stack) -> None:
    done = finished("pay", gate(stack), "--test-wallet", "--json")
    told = json.loads(done.stdout)
    assert (told["served"], told["charge"], told["paid"], told["creditsLeft"]) == (True, "payment", "0.02", 0)
    assert json.loads(told["body"])["city"] == "Bergen"
    with serving(lambda _request: Reply(500, {})) as server:
        done = finished("pay", server.url, "--test-wallet", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["served"], told["charge"]) == (1, False, "nothing")


def test_nothing_is_signed_where_it_could_not_be_kept(stack: Stack, tmp_path: Path) -> None:
    taken = written(tmp_path / "file", "")
    done = finished("pay", gate(stack), "--test-wallet", environ={"XDG_STATE_HOME": str(taken)})
    assert done.returncode == 1
    assert "name another folder by XDG_STATE_HOME. You were not charged." in done.stderr.replace("\n", " ")


def test_nothing_is_signed_for_longer_than_ten_minutes() -> None:
    asked = {**entry(), "maxTimeoutSeconds": 10**80}
    assert authorization_for(asked, "0x" + "ab" * 20, bytes(32), 1_000).valid_before == 1_600
