"""What a hostile server gets from our own clients: no signature but of a login or payment, and no terminal."""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import FINISHED_SECONDS, clean_environment, command, finished
from tests.interop.local_server import LocalServer, Reply, Request, serving
from tollkeeper.core.keys.siwe import new_message
from tollkeeper.core.networks import NETWORKS, Family
from tollkeeper.core.solana.base58 import encode
from tollkeeper.core.wallets import parse_wallet
from tollkeeper.sandbox.wallets import derive_wallets

OWNER = derive_wallets().owner
STRANGER = "0x" + "71" * 20
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202etxt\x00\x08"
# Whatever is no text, end of line or tab. A terminal's driver writes ends of lines as two characters.
BAR = re.compile(r"\x1b\[\?25[lh]|\r\x1b\[2K|\x1b\[1A")  # with which an upload's own bar moves
CONTROL = re.compile(r"[^\n\t\x20-\x7e\xa1-\u1fff\u2030-\ud7ff]")


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "wallet.key"
    path.write_text(OWNER.private_key_hex + "\n")
    path.chmod(0o600)
    return path


def message(url: str, wallet: str = OWNER.address, chain: str = "84532") -> str:
    chains = {Family.EVM: chain, Family.SOLANA: chain}
    return new_message(url, parse_wallet(wallet), chains, bytes(16), time.time_ns() // 1_000_000, bytes(32)).text()


HOSTILE_MESSAGES: list[Callable[[str], object]] = [
    lambda _here: message("https://gate.example"),
    lambda here: message(here.replace("127.0.0.1", "localhost")),
    lambda here: message(here.replace("http:", "https:")),
    lambda here: message(here + "0"),
    lambda here: message(here + "/elsewhere"),
    lambda here: message("https://gate.example").replace("URI: https://gate.example", f"URI: {here}"),
    lambda here: message(here).replace(f"URI: {here}", "URI: https://gate.example"),
    lambda here: message(here, STRANGER),
    lambda here: message(here, encode(bytes(range(32)))),
    lambda here: message(here, chain="1"),
    lambda here: message(here, chain="devnet"),
    lambda here: message(here).replace("This costs nothing", "I hand over all that I own"),
    lambda here: message(here) + "\nResources:\n- https://gate.example",
    lambda here: message(here) + "\n",
    lambda here: message(here).replace("Version: 1", "Version: 1\nRequest ID: 7"),
    lambda here: "https://gate.example" + message(here),
    lambda _here: "\x19\x01" + "a" * 64,
    lambda _here: "0x" + "ab" * 32,
    lambda _here: {"message": 7},
    lambda _here: 7,
    lambda _here: None,
]


@pytest.mark.parametrize("text", HOSTILE_MESSAGES)
@pytest.mark.parametrize("act", ["create", "create a file", "update"])
def test_no_owner_signs_what_is_no_login_at_the_server_that_he_asked(
    text: Callable[[str], object], act: str, key_file: Path
) -> None:
    def answer(request: Request) -> Reply:
        return Reply(200, {"message": text(server.url) if "auth/message" in request.path else ""})

    with serving(answer) as server:
        where = ("--gateway", server.url, "--key-file", key_file)
        done = {
            "create": lambda: finished("paygate", "create", "--target", "http://x.example", "--price", "1", *where),
            "create a file": lambda: finished("paygate", "create", "--file", key_file, "--price", "1", *where),
            "update": lambda: finished("paygate", "update", "slug", "--file", key_file, *where),
        }[act]()
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "nothing was signed" in done.stderr
    assert [request.path.partition("?")[0] for request in server.received] == ["/api/v1/auth/message"]


def test_an_owner_signs_a_login_at_the_server_that_he_asked(key_file: Path) -> None:
    with serving(
        lambda _request: Reply(200, {"message": message(server.url), "accessToken": "x", "accessUrl": "u"})
    ) as server:
        where = ("--gateway", server.url.upper().replace("HTTP", "http") + "/", "--key-file", key_file)
        done = finished("paygate", "create", "--target", "http://x.example", "--price", "1", *where)
    assert (done.returncode, done.stdout) == (0, "u\n")


@pytest.mark.parametrize(
    "url", ["http://gate.example", "http://192.168.1.7:8402", "http://127.0.0.1@gate.example", "http://0x7f.1:8402"]
)
def test_nothing_is_signed_for_who_is_on_the_way(url: str, key_file: Path) -> None:
    commands = [
        ("paygate", "create", "--target", "http://x.example", "--price", "1", "--gateway", url, "--key-file", key_file),
        ("paygate", "create", "--target", "http://x.example", "--price", "1", "--gateway", url),
        ("paygate", "update", f"{url}/slug", "--file", key_file, "--key-file", key_file),
        ("pay", f"{url}/weather", "--test-wallet"),
    ]
    for words in commands:
        done = finished(*words)
        assert (done.returncode, "nothing was signed. Use https" in done.stderr.replace("\n", " ")) == (1, True), done


def entry(**changes: object) -> dict[str, Any]:
    return {
        "scheme": "exact",
        "network": "base-sepolia",
        "maxAmountRequired": "1000",
        "resource": "http://127.0.0.1/",
        "payTo": STRANGER,
        "maxTimeoutSeconds": 60,
        "asset": NETWORKS["base-sepolia"].usdc.address,
        "extra": {"name": "USDC", "version": "2"},
        **changes,
    }


def on_solana(**changes: object) -> dict[str, Any]:
    there = {"payTo": encode(bytes(range(32))), "extra": {"feePayer": encode(bytes(range(1, 33)))}}
    return entry(network="solana-devnet", asset=NETWORKS["solana-devnet"].usdc.address, **{**there, **changes})


def asking(asked: dict[str, Any], version: int) -> Reply:
    """A 402 that asks for this, in that version alone."""
    if version == 1:
        return Reply(402, {"x402Version": 1, "accepts": [asked]})
    network = NETWORKS["base-sepolia" if asked["network"] == "base-sepolia" else "solana-devnet"]
    offer = {name: value for name, value in asked.items() if name not in {"maxAmountRequired", "resource"}}
    offer |= {"network": network.caip2, "amount": asked["maxAmountRequired"]}
    required = {"x402Version": 2, "error": "Payment required", "resource": {"url": ESCAPES}, "accepts": [offer]}
    return Reply(402, {}, {"PAYMENT-REQUIRED": base64.b64encode(json.dumps(required).encode()).decode()})


def is_paid(request: Request) -> bool:
    return not {"x-payment", "payment-signature"}.isdisjoint(request.headers)


def solana_fee_payer(**more: object) -> dict[str, object]:
    return {"feePayer": encode(bytes(range(1, 33))), **more}


@pytest.mark.parametrize(
    "asked",
    [
        entry(extra={"name": "Permit2", "version": "2"}),
        entry(extra={"name": "USDC", "version": "1"}),
        entry(extra={"name": "USDC", "version": 2}),
        entry(extra={"name": ["USDC"], "version": "2"}),
        entry(extra={}),
        entry(payTo="0x" + 40 * "0"),
        entry(payTo=NETWORKS["base-sepolia"].usdc.address),
        entry(payTo="{payer}"),
        entry(payTo="0x" + "aB" * 20),
        entry(payTo=encode(bytes(range(32)))),
        entry(maxTimeoutSeconds=0),
        entry(maxTimeoutSeconds=-60),
        entry(maxTimeoutSeconds="60"),
        entry(maxTimeoutSeconds=True),
        entry(maxTimeoutSeconds=6.5),
        entry(maxTimeoutSeconds=None),
        on_solana(payTo=STRANGER),
        on_solana(payTo="{payer}"),
        on_solana(payTo=NETWORKS["solana-devnet"].usdc.address),
        on_solana(maxTimeoutSeconds=0),
        on_solana(extra={}),
        on_solana(extra={"feePayer": "{payer}"}),
        on_solana(extra={"feePayer": 7}),
        on_solana(extra=solana_fee_payer(memo="I owe the bearer a house")),
        on_solana(extra=solana_fee_payer(memo="a\nb")),
        on_solana(extra=solana_fee_payer(memo="x" * 65)),
        on_solana(extra=solana_fee_payer(memo=["x"])),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_no_buyer_signs_what_is_no_ordinary_payment(asked: dict[str, Any], version: int) -> None:
    wallets = derive_wallets()
    payer = wallets.buyer.address if asked["network"] == "base-sepolia" else solana_buyer()
    challenge = asking(json.loads(json.dumps(asked).replace("{payer}", payer)), version)
    node = {"jsonrpc": "2.0", "id": 1, "result": {"value": {"blockhash": encode(bytes(range(2, 34)))}}}
    with serving(lambda request: Reply(200, node) if request.method == "POST" else challenge) as server:
        done = finished("pay", server.url, "--test-wallet", "--rpc-url", server.url)
    assert (done.returncode, "cannot be signed" in done.stderr) == (1, True), done.stderr
    assert not any(map(is_paid, server.received))


@pytest.mark.parametrize(
    "asked",
    [
        entry(scheme="upto"),
        entry(asset=STRANGER),
        entry(maxAmountRequired="-5"),
        entry(maxAmountRequired=5.7),
        entry(maxAmountRequired="999999999999"),
        entry(extra={"name": "USDC", "version": "2", "assetTransferMethod": "permit2"}),
        entry(extra={"name": "USDC", "version": "2", "paymentFlow": "later"}),
    ],
)
def test_no_buyer_takes_another_offer_of_version_2_than_an_exact_payment(asked: dict[str, Any]) -> None:
    with serving(lambda _request: asking(asked, 2)) as server:
        done = finished("pay", server.url, "--test-wallet")
    assert (done.returncode, len(server.received)) == (1, 1), done.stderr


def solana_buyer() -> str:
    from tollkeeper.sandbox.wallets import buyer_keys  # noqa: PLC0415 - reads what only this test needs

    return next(key.address for key in buyer_keys() if key.family is Family.SOLANA)


@pytest.mark.parametrize("asked", [entry(), on_solana(), on_solana(extra=solana_fee_payer(memo="order:17.a_b-c"))])
@pytest.mark.parametrize("version", [1, 2])
def test_an_ordinary_payment_is_signed(asked: dict[str, Any], version: int) -> None:
    node = {"jsonrpc": "2.0", "id": 1, "result": {"value": {"blockhash": encode(bytes(range(2, 34)))}}}

    def answer(request: Request) -> Reply:
        if request.method == "POST":
            return Reply(200, node)
        return Reply(200, {}) if is_paid(request) else asking(asked, version)

    with serving(answer) as server:
        done = finished("pay", server.url, "--test-wallet", "--rpc-url", server.url)
    assert done.returncode == 0, done.stderr
    (shown,) = [request.headers for request in server.received if is_paid(request)]
    assert ("payment-signature" in shown, "x-payment" in shown) == (version == 2, version == 1)
    if version == 2:
        sent = json.loads(base64.b64decode(shown["payment-signature"]))
        required = json.loads(base64.b64decode(asking(asked, 2).headers["PAYMENT-REQUIRED"]))
        assert sent["accepted"] == required["accepts"][0]
        assert (sent["x402Version"], sent["resource"]) == (2, required["resource"])


@pytest.mark.parametrize("name", ["X-Payment-Response", "PAYMENT-RESPONSE"])
@pytest.mark.parametrize("token", [(), ("--credit-token", "pur_1.abc")])
def test_nothing_is_signed_on_an_answer_that_carries_a_receipt(name: str, token: tuple[str, ...]) -> None:
    """It was paid for: a 402 behind a receipt is a target's own, or a lie."""
    receipt = base64.b64encode(b'{"success": true, "transaction": "0xabc"}').decode()
    with serving(lambda _request: Reply(402, {"x402Version": 1, "accepts": [entry()]}, {name: receipt})) as server:
        done = finished("pay", server.url, "--test-wallet", *token)
    assert (done.returncode, "carries a receipt" in done.stderr) == (4 if token else 1, True), done.stderr
    assert len(server.received) == 1
    assert not is_paid(server.received[0])


def on_a_terminal(*arguments: str | Path) -> str:
    """What a command writes to a terminal, on both streams."""
    ours, theirs = pty.openpty()
    environment = clean_environment({"TERM": "xterm", "NO_COLOR": "1"})
    with subprocess.Popen(command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=environment):
        os.close(theirs)
        written = b""
        deadline = time.monotonic() + FINISHED_SECONDS
        while select.select([ours], [], [], max(0.0, deadline - time.monotonic()))[0]:
            try:
                written += os.read(ours, 65536)
            except OSError:  # nobody writes any more
                break
        os.close(ours)
    return written.decode("utf-8", "replace").replace("\r\n", "\n")


def hostile_answers() -> list[Callable[[LocalServer, Request], Reply]]:
    error = {"error": {"code": f"X{ESCAPES}", "message": ESCAPES, "details": {"supported": [ESCAPES]}}}
    receipt = base64.b64encode(json.dumps({"transaction": ESCAPES, "network": ESCAPES, "payer": ESCAPES}).encode())
    tokens = {"X-Credit-Token": b"\x1b[2J".decode("latin-1"), "X-Payment-Response": receipt.decode()}
    told = {"success": True, "transaction": ESCAPES, "network": ESCAPES, "payer": ESCAPES, "amount": "0"}
    receipt_of_version_2 = base64.b64encode(json.dumps(told).encode()).decode()
    made = {
        "accessToken": "x", "accessUrl": ESCAPES, "managementToken": ESCAPES, "warnings": [{"message": ESCAPES}],
        "fileName": ESCAPES, "fileSize": ESCAPES, "sha256": ESCAPES,
        "data": [{"slug": "slug", "id": 1}], "pagination": {"hasNext": False},
    }  # fmt: skip

    def logged_in(server: LocalServer, _request: Request) -> Reply:
        return Reply(200, {"message": message(server.url), **made})

    return [
        logged_in,
        lambda _server, _request: Reply(200, {"text": ESCAPES}, tokens),
        lambda _server, _request: Reply(400, error, tokens),
        lambda _server, _request: Reply(503, {"error": {"code": "UNAVAILABLE", "message": ESCAPES}}, tokens),
        lambda _server, _request: Reply(402, {"x402Version": 1, "accepts": [entry(payTo=ESCAPES)]}),
        lambda _server, _request: Reply(402, {"x402Version": 1, "accepts": [entry(extra={"name": ESCAPES})]}),
        lambda _server, _request: Reply(402, {"x402Version": 1, "accepts": []}, tokens),
        lambda _server, _request: asking(entry(payTo=ESCAPES), 2),
        lambda _server, _request: asking(entry(extra={"name": ESCAPES}), 2),
        lambda _server, request: (
            Reply(200, {}, {**tokens, "PAYMENT-RESPONSE": receipt_of_version_2})
            if is_paid(request)
            else asking(entry(), 2)
        ),
        lambda _server, _request: Reply(200, {"message": ESCAPES}),
        lambda _server, _request: Reply(200, {"message": message("https://gate.example")}),
    ]


@pytest.mark.parametrize("answer", hostile_answers())
def test_no_control_character_of_a_server_reaches_a_terminal(
    answer: Callable[[LocalServer, Request], Reply], key_file: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file.txt"
    file.write_text("content")
    with serving(lambda request: answer(server, request)) as server:
        where = ("--gateway", server.url, "--key-file", key_file)
        for words in (
            ("paygate", "create", "--target", "http://x.example", "--price", "1", *where),
            ("paygate", "create", "--target", "http://x.example", "--price", "1", *where[:2]),
            ("paygate", "update", "slug", "--file", file, *where),
            ("pay", server.url, "--test-wallet", "--credit-token", "x"),
            ("pay", server.url, "--test-wallet"),
        ):
            written = on_a_terminal(*words)
            assert written
            assert CONTROL.search(BAR.sub("", written)) is None, repr(written)


def test_no_control_character_of_a_gateway_s_records_reaches_a_terminal(key_file: Path) -> None:
    sums = {
        "revenue": ESCAPES, "purchases": ESCAPES, "challenges": ESCAPES, "refusals": ESCAPES,
        "latencyUs": {"p95": None}, "calls": {"total": ESCAPES, "failed": ESCAPES},
    }  # fmt: skip
    row = {
        **sums, "slug": ESCAPES, "id": 1, "accessUrl": ESCAPES, "price": ESCAPES, "credits": ESCAPES, "title": ESCAPES,
        "network": ESCAPES, "counters": {"purchases": 1, "calls": 1, "revenue": ESCAPES}, "isEnabled": True,
        "remaining": 1, "used": 1, "granted": 1, "expiresAt": ESCAPES, "creditToken": ESCAPES, "start": ESCAPES,
        "requestId": ESCAPES, "at": ESCAPES, "method": ESCAPES, "status": ESCAPES, "outcome": ESCAPES, "code": ESCAPES,
        "durationUs": 1, "purchaseId": ESCAPES, "createdAt": ESCAPES, "type": ESCAPES, "amount": "1",
        "signerAddress": ESCAPES, "transactionHash": ESCAPES, "error": ESCAPES,
    }  # fmt: skip
    told = {
        **row, "accessToken": "x", "walletAddress": ESCAPES, "data": [row], "history": [row], "from": ESCAPES,
        "to": ESCAPES, "bucket": ESCAPES, "outstanding": {"credits": ESCAPES}, "secret": ESCAPES, "keyId": ESCAPES,
        "outstandingCredits": ESCAPES, "success": True, "pagination": {"hasNext": False},
    }  # fmt: skip
    with serving(lambda _request: Reply(200, {**told, "message": message(server.url)})) as server:
        for words in (
            "paygate list", "paygate show 1", "paygate secret 1", "paygate delete 1 --yes", "stats", "requests",
            "requests --json", "history", "credits", "whoami",
        ):  # fmt: skip
            written = on_a_terminal(*words.split(), "--gateway", server.url, "--key-file", key_file)
            assert "owned" in written, written
            assert "Traceback" not in written, written
            assert CONTROL.search(written) is None, repr(written)


def test_a_body_goes_to_a_pipe_byte_for_byte_and_to_a_terminal_as_text() -> None:
    body = {"text": "line\nend\ttab é 漢"}
    with serving(lambda _request: Reply(200, body)) as server:
        assert json.loads(finished("pay", server.url, "--test-wallet").stdout) == body
        assert json.dumps(body) in on_a_terminal("pay", server.url, "--test-wallet")


def test_every_command_prints_by_what_keeps_control_characters_out() -> None:
    sources = [*Path("src/tollkeeper/cli").glob("*.py"), *Path("src/tollkeeper/client").glob("*.py")]
    for source in sources:
        if source.name != "output.py":
            found = re.findall(r"\b(?:print|secho|echo)\(|sys\.std(?:out|err)\.(?:write|buffer)", source.read_text())
            assert found == [], source
