"""The owner's commands at a running gateway: log in once, then make, read, change and delete, by words or as JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import typer

from tests.cli.processes import ask as ask_plainly
from tests.cli.processes import clean_environment, command, finished, interruptible
from tests.interop.local_server import Reply, Request, serving
from tests.interop.stack import Stack, ask, sandbox
from tollkeeper.cli.commands import app
from tollkeeper.cli.owner.gate_fields import FIELDS
from tollkeeper.core.paygates.fields import SETTABLE
from tollkeeper.gateway.management.bodies import CreatePayGate, UpdatePayGate
from tollkeeper.sandbox.wallets import derive_wallets

OWNER = derive_wallets().owner


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with sandbox(tmp_path_factory.mktemp("sandbox") / "log.txt") as running:
        yield running


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return key_of(tmp_path, "owner", OWNER.private_key_hex)


def key_of(home: Path, name: str, key: str) -> Path:
    path = home / f"{name}.key"
    path.write_text(key)
    path.chmod(0o600)
    return path


def user(home: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(home / "state")}


def done(home: Path, *words: str | Path) -> str:
    """What a command of this user prints; it must succeed."""
    ended = finished(*words, environ=user(home))
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def told(home: Path, *words: str | Path) -> Any:
    return json.loads(done(home, *words, "--json"))


def test_an_owner_logs_in_once_and_needs_no_key_or_url_after_that(stack: Stack, tmp_path: Path, key_file: Path) -> None:
    done(tmp_path, "login", "--key-file", key_file, "--gateway", stack.gateway_url)
    address = derive_wallets().owner.key.address
    assert done(tmp_path, "whoami") == f"{address} at {stack.gateway_url}\n"
    link = done(
        tmp_path, "paygate", "create", "--target", stack.target_url, "--price", "0.01", "--title", "Sky"
    ).strip()
    gate = told(tmp_path, "paygate", "show", link)
    assert (gate["ownerWallet"], gate["title"]) == (address, "Sky")
    assert link in done(tmp_path, "paygate", "list")
    assert told(tmp_path, "paygate", "list")[0]["accessUrl"] == link

    assert finished("pay", link, "--test-wallet").returncode == 0
    changed = done(tmp_path, "paygate", "update", gate["slug"], "--price", "0.02", "--disabled")
    assert changed == f"{link} is changed: price, isEnabled\n"
    assert told(tmp_path, "paygate", "show", str(gate["id"]))["price"] == "0.02"
    assert told(tmp_path, "stats", gate["slug"])["revenue"] == "0.01"
    assert "revenue      0.01" in done(tmp_path, "stats")
    rows = [json.loads(line) for line in done(tmp_path, "requests", link, "--json").splitlines()]
    assert [row["outcome"] for row in rows] == ["challenged", "served"]
    assert " GET 200 served " in done(tmp_path, "requests")
    assert told(tmp_path, "history")["history"][0]["type"] == "purchase"
    assert "0.01" in done(tmp_path, "history", "--limit", "1")

    refused = finished("paygate", "delete", gate["slug"], environ=user(tmp_path))
    assert (refused.returncode, "give --yes" in refused.stderr) == (2, True)
    assert "It is deleted" in done(tmp_path, "paygate", "delete", gate["slug"], "--yes")
    assert ask(link)[0] == 404

    assert "has ended" in done(tmp_path, "logout")
    out = finished("whoami", "--gateway", stack.gateway_url, environ=user(tmp_path))
    assert (out.returncode, "run `tollkeeper login`" in out.stderr) == (1, True)


def test_a_kept_login_is_refreshed_when_it_is_old_and_told_when_it_has_ended(
    stack: Stack, tmp_path: Path, key_file: Path
) -> None:
    done(tmp_path, "login", "--key-file", key_file, "--gateway", stack.gateway_url)
    (path,) = (one for one in (tmp_path / "state").rglob("logins/*.json") if one.name != "current.json")
    assert path.stat().st_mode & 0o777 == 0o600
    kept = json.loads(path.read_bytes())
    path.write_text(json.dumps({**kept, "at_seconds": 0, "access_token": "old"}))
    assert told(tmp_path, "whoami")["gateway"] == stack.gateway_url
    assert json.loads(path.read_bytes())["refresh_token"] != kept["refresh_token"]
    path.write_text(json.dumps({**kept, "at_seconds": 0, "refresh_token": "ended"}))
    again = finished("whoami", environ=user(tmp_path))
    assert (again.returncode, "run `tollkeeper login` again" in again.stderr) == (1, True), again.stderr


def test_every_field_of_the_api_is_an_option(stack: Stack, tmp_path: Path, key_file: Path) -> None:
    table = {field.wire for field in FIELDS}
    api = {*CreatePayGate.__struct_encode_fields__, *UpdatePayGate.__struct_encode_fields__}
    assert table == api - {"resourceType"} == {*SETTABLE, "slug"}
    here = ("--gateway", stack.gateway_url, "--key-file", key_file)
    words = (
        "--price 0.5 --credits 3 --method GET,POST --title T --description D --slug every-field --network base-sepolia "
        f"--payment-address {stack.pay_to} --accept solana-devnet={stack.solana.pay_to} --require-auth --assume-valid "
        "--credit-binding token --payer-proof --credits-expire-after 60 --on-failure restore --mime-type text/csv "
        "--header-auth-mode hmac --allow-subpaths --stream --disabled"
    )
    made = told(
        tmp_path,
        "paygate",
        "create",
        "--target",
        stack.target_url,
        "--target-header",
        "X-Key: a",
        *words.split(),
        *here,
    )
    expected: Mapping[str, Any] = {
        "price": "0.5", "credits": 3, "method": "GET,POST", "title": "T", "description": "D", "slug": "every-field",
        "network": "base-sepolia", "paymentAddress": stack.pay_to, "requireAuth": True, "assumeValid": True,
        "accepts": [{"network": "solana-devnet", "paymentAddress": stack.solana.pay_to}], "creditBinding": "token",
        "payerProof": True, "creditsExpireAfter": 60, "onFailure": "restore", "mimeType": "text/csv",
        "headerAuthMode": "hmac", "allowSubpaths": True, "stream": True, "isEnabled": False, "targetHeaders": ["X-Key"],
    }  # fmt: skip
    assert expected.keys() == table - {"targetUrl"}  # each field once, with another value than its default
    assert {name: made[name] for name in expected} == expected
    secret = told(tmp_path, "paygate", "secret", "every-field", *here)
    assert secret["keyId"] != made["keyId"]
    back = "--accept none --target-header none --credits-expire-after never --no-stream --no-require-auth --enabled"
    changed = told(tmp_path, "paygate", "update", "every-field", *back.split(), *here)
    now = {name: changed[name] for name in ("accepts", "targetHeaders", "creditsExpireAfter", "stream", "isEnabled")}
    assert now == {
        "accepts": [], "targetHeaders": [], "creditsExpireAfter": None, "stream": False, "isEnabled": True
    }  # fmt: skip
    kept = expected.keys() - now.keys() - {"requireAuth"}
    assert {name: changed[name] for name in kept} == {name: expected[name] for name in kept}  # as it was stored


def test_credits_are_shown_by_the_gateway_and_as_pay_keeps_them(stack: Stack, tmp_path: Path) -> None:
    gate = stack.create_gate(targetUrl=stack.target_url, price="0.01", credits=4)
    done(tmp_path, "pay", gate["accessUrl"], "--test-wallet")
    buyer = key_of(tmp_path, "buyer", derive_wallets().buyer.private_key_hex)
    here = ("credits", "--gateway", stack.gateway_url, "--key-file", buyer)
    (held,) = (one for one in told(tmp_path, *here) if one["slug"] == gate["slug"])
    assert held["remaining"] == 3
    assert held["creditToken"] in done(tmp_path, *here)
    (kept,) = told(tmp_path, "credits", "--kept")
    assert (kept["gate"], kept["left"], kept["creditToken"]) == (gate["accessUrl"], 3, held["creditToken"])


def test_requests_are_followed_until_they_are_interrupted(stack: Stack) -> None:
    gate = stack.create_gate(targetUrl=stack.target_url, price="0.01")
    words = interruptible("requests", gate["slug"], "--follow", "--gateway", stack.gateway_url)
    with subprocess.Popen(words, env=clean_environment(), stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        try:
            for _ in range(2):
                ask(gate["accessUrl"])
                assert " GET 402 challenged " in following.stdout.readline()
            following.send_signal(signal.SIGINT)
            assert following.wait(60) == 130
        finally:
            following.kill()


def test_a_wallet_is_made_for_its_owner_alone_and_tells_what_it_holds(stack: Stack, tmp_path: Path) -> None:
    for kind, node, network in (
        ((), stack.rpc_url, "base-sepolia"),
        (("--solana",), stack.solana.rpc_url, "solana-devnet"),
    ):
        path = tmp_path / f"{network}.key"
        made = told(tmp_path, "wallet", "new", path, *kind)
        assert path.stat().st_mode & 0o777 == 0o600
        key, there = ("--key-file", path), ("--network", network, "--rpc-url", node)
        assert done(tmp_path, "wallet", "address", *key).strip() == made["walletAddress"]
        assert told(tmp_path, "wallet", "balance", *key, *there)["USDC"] == "0"
        refused = finished("wallet", "new", path, *kind)
        assert (refused.returncode, "is there already, and nothing was written" in refused.stderr) == (1, True)
    rich = told(tmp_path, "wallet", "balance", stack.buyer_address, "--rpc-url", stack.rpc_url)
    assert float(rich["USDC"]) > 0
    wrong = finished("wallet", "balance", stack.buyer_address, "--rpc-url", stack.rpc_url, "--network", "base")
    assert (wrong.returncode, "is a node of chain 84532, and base is chain 8453" in wrong.stderr) == (1, True)


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, (*words, name))
        else:
            yield (*words, name), one


def test_every_command_has_an_example_that_its_options_take() -> None:
    every = dict(commands(typer.main.get_command(app)))
    for words, one in every.items():
        (example,) = [line for line in (one.help or "").splitlines() if line.startswith("Example: ")]
        typed = example.partition("tollkeeper ")[2]
        assert typed.startswith((" ".join(words), words[-1])), example  # `db backup` is `backup`, too
        options = {name for parameter in one.params for name in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in typed.split() if word.startswith("--")} <= options, example
    listings = ("paygate list", "paygate show", "stats", "requests", "history", "credits", "whoami", "pay")
    for name in listings:
        assert any("--json" in parameter.opts for parameter in every[tuple(name.split())].params), name


def test_a_server_that_is_no_gateway_is_told_apart() -> None:
    with serving(lambda _request: Reply(200, {"data": [{"slug": "x"}], "history": [7]})) as server:
        for words in ("paygate list", "paygate show x", "requests", "history", "stats", "whoami"):
            told_apart = finished(*words.split(), "--gateway", server.url)
            assert (told_apart.returncode, "Traceback" in told_apart.stderr) == (1, False), told_apart.stderr
            assert told_apart.stderr.strip(), words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(shell: str) -> None:
    script = finished("completion", shell)
    assert (script.returncode, "_TOLLKEEPER_COMPLETE" in script.stdout) == (0, True), script.stderr
    if shell == "bash":
        typed = {"_TOLLKEEPER_COMPLETE": "complete_bash", "COMP_WORDS": "tollkeeper paygate up", "COMP_CWORD": "2"}
        assert finished(environ=typed, is_forked=False).stdout.split() == ["update"]


def test_no_colour_is_written_where_none_is_wanted() -> None:
    """On a terminal, where there is colour otherwise."""
    for environ, is_coloured in (({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)):
        ours, theirs = os.openpty()
        words = interruptible("whoami", "--gateway", "http://127.0.0.1:9")
        with subprocess.Popen(words, env=clean_environment(environ), stdin=theirs, stdout=theirs, stderr=theirs) as run:
            os.close(theirs)
            assert run.wait(60) == 1
        written = b"".join(iter(partial(_read, ours), b""))
        os.close(ours)
        assert (b"\x1b[" in written) == is_coloured, written


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # nobody writes any more
        return b""


def test_a_browser_lets_the_command_line_in_by_a_code_that_alone_is_worth_nothing(tmp_path: Path) -> None:
    """The gateway is played: it lets in whoever shows the secret that the page was told the hash of."""
    asked: dict[str, str] = {}

    def answer(request: Request) -> Reply:
        if request.path == "/api/v1/auth/handover":
            body = request.json()
            told = base64.urlsafe_b64encode(hashlib.sha256(body["verifier"].encode()).digest()).decode().rstrip("=")
            is_good = (body["code"], told, str(body["port"])) == ("one-time", asked["challenge"], asked["port"])
            user = {"walletAddress": derive_wallets().owner.key.address}
            return Reply(200 if is_good else 401, {"accessToken": "a", "refreshToken": "r", "user": user})
        return Reply(200, {"walletAddress": derive_wallets().owner.key.address})

    environ = clean_environment({**user(tmp_path), "BROWSER": "true"})
    with serving(answer) as server:
        words = command("login", "--gateway", server.url)
        with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as login:
            assert login.stderr is not None
            try:
                code = login.stderr.readline().split()[-1]
                page = urlsplit(login.stderr.readline().strip())
                asked.update(parse_qsl(page.query))
                assert (f"{page.scheme}://{page.netloc}{page.path}", asked["code"]) == (
                    f"{server.url}/app/terminal",
                    code,
                )
                here = f"http://127.0.0.1:{asked['port']}"
                assert ask_plainly(f"{here}/favicon.ico").status == 404
                assert ask_plainly(f"{here}/?code=one-time").status == 200
                said, wrote = login.communicate(timeout=60)
            finally:
                login.kill()
        assert (login.returncode, said) == (
            0,
            f"{derive_wallets().owner.key.address} is logged in at {server.url}.\n",
        ), wrote
        assert done(tmp_path, "whoami") == f"{derive_wallets().owner.key.address} at {server.url}\n"
