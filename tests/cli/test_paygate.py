"""`tollkeeper paygate create` and `update`: a URL or a file becomes a link that sells it, then another file does."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import clean_environment, command, finished
from tests.interop.local_server import Reply, serving
from tests.interop.stack import Stack, ask, sandbox
from tollkeeper.sandbox.wallets import derive_wallets


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with sandbox(tmp_path_factory.mktemp("sandbox") / "log.txt") as running:
        yield running


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "wallet.key"
    path.write_text(derive_wallets().owner.private_key_hex + "\n")
    path.chmod(0o600)
    return path


def offered(url: str) -> dict[str, Any]:
    """The 402's body."""
    status, body = ask(url)
    assert status == 402
    return body


def test_a_file_is_sent_and_its_link_printed(stack: Stack, tmp_path: Path, key_file: Path) -> None:
    file = tmp_path / "report.bin"
    file.write_bytes(os.urandom(3_000_000))
    arguments = ("--gateway", stack.gateway_url, "--price", "0.5", "--credits", "2", "--key-file", key_file)
    made = finished("paygate", "create", "--file", file, *arguments)
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith(stack.gateway_url)
    assert offered(made.stdout.strip())["x402Version"] == 1


def test_a_file_is_replaced_by_its_owner_and_the_link_stays(stack: Stack, tmp_path: Path, key_file: Path) -> None:
    first, second = tmp_path / "first.bin", tmp_path / "second.bin"
    first.write_bytes(b"first")
    second.write_bytes(os.urandom(3_000_000))
    where = ("--gateway", stack.gateway_url, "--key-file", key_file)
    link = finished("paygate", "create", "--file", first, "--price", "0.5", *where, is_forked=False).stdout.strip()
    for named in ((link,), (link.rpartition("/")[2], "--gateway", stack.gateway_url)):
        done = finished("paygate", "update", *named, "--file", second, "--key-file", key_file, is_forked=False)
        assert done.returncode == 0, done.stderr
        digest = hashlib.sha256(second.read_bytes()).hexdigest()
        assert done.stdout == f"{link} sells second.bin, 3000000 bytes, sha256 {digest}\n"


@pytest.mark.parametrize(
    ("name", "sold"),
    [
        ("my réport (1).pdf", "my réport (1).pdf"),
        ('a "b" 100%.txt', "a b 100%.txt"),
        ("line\nbreak.txt", "linebreak.txt"),
        ("latin-1 \udce9.txt", "latin-1 .txt"),  # how Python reads a name that is no UTF-8
    ],
)
def test_a_file_is_sold_under_its_own_name(stack: Stack, tmp_path: Path, key_file: Path, name: str, sold: str) -> None:
    file = tmp_path / name
    file.write_text("content")
    where = ("--gateway", stack.gateway_url, "--key-file", key_file)
    made = finished("paygate", "create", "--file", file, "--price", "0.5", *where)
    assert made.returncode == 0, made.stderr
    done = finished("paygate", "update", made.stdout.strip(), "--file", file, *where[2:])
    assert (done.returncode, done.stderr) == (0, "")
    assert f" sells {sold}, 7 bytes" in done.stdout


@pytest.mark.parametrize(
    ("name", "sold_as"),
    [
        ("report.pdf", "application/pdf"),
        ("weather.json", "application/json"),
        ("data.tar.gz", "application/octet-stream"),
        ("x", "application/octet-stream"),
    ],
)
def test_a_file_is_sold_as_what_its_name_says(
    stack: Stack, tmp_path: Path, key_file: Path, name: str, sold_as: str
) -> None:
    file = tmp_path / name
    file.write_text("content")
    where = ("--gateway", stack.gateway_url, "--key-file", key_file)
    made = finished("paygate", "create", "--file", file, "--price", "0.5", *where)
    assert made.returncode == 0, made.stderr
    (asked,) = offered(made.stdout.strip())["accepts"]
    assert asked["mimeType"] == sold_as


def test_only_a_file_of_ones_own_is_replaced(stack: Stack, tmp_path: Path, key_file: Path) -> None:
    file, other = tmp_path / "x", tmp_path / "other.key"
    file.write_text("x")
    other.write_text(derive_wallets().buyer.private_key_hex + "\n")
    other.chmod(0o600)
    where = ("--gateway", stack.gateway_url, "--key-file", key_file)
    link = finished("paygate", "create", "--file", file, "--price", "0.5", *where).stdout.strip()
    target = finished("paygate", "create", "--target", stack.target_url, "--price", "0.5", *where).stdout.strip()
    for arguments, code, said in (
        ((link, "--key-file", other), 1, "FORBIDDEN|there is no PayGate"),
        ((target, "--key-file", key_file), 1, "INVALID_PARAMETER"),
    ):
        refused = finished("paygate", "update", *arguments, "--file", file)
        assert (refused.returncode, "Traceback" in refused.stderr) == (code, False)
        assert any(one in refused.stderr for one in said.split("|")), refused.stderr


def test_a_target_needs_no_wallet_where_the_gateway_asks_for_none(stack: Stack) -> None:
    made = finished(
        "paygate", "create", "--target", stack.target_url, "--gateway", stack.gateway_url, "--price", "0.01"
    )
    assert made.returncode == 0, made.stderr
    assert json.dumps(offered(made.stdout.strip()))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--price", "0.5"), 2, "either --target or --file"),
        (("--price", "0.5", "--target", "http://x/", "--file", "{file}"), 2, "either --target or --file"),
        (("--price", "0.5", "--file", "{file}"), 2, "needs --key-file"),
        (("--price", "0.5", "--file", "{file}", "--key-file", "{file}"), 2, "--key-file"),
        (("--price", "free", "--file", "{file}", "--key-file", "{key}"), 1, "INVALID_AMOUNT"),
        (
            ("--price", "0.5", "--target", "http://x/", "--gateway", "http://127.0.0.1:9"),
            1,
            "127.0.0.1:9 cannot be reached",
        ),
        (("--price", "0.5", "--target", "http://x/", "--gateway", "127.0.0.1:8402"), 2, "does not begin with http://"),
        (("--price", "0.5", "--target", "http://x/", "--gateway", "{target}"), 1, "does not answer as a gateway does"),
        (
            ("--price", "0.5", "--file", "{file}", "--key-file", "{key}", "--gateway", "{target}"),
            1,
            "does not answer as a gateway does",
        ),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_made(
    stack: Stack, tmp_path: Path, key_file: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    file = tmp_path / "x"
    file.write_text("x")
    target = stack.target_url.replace("/weather", "/echo")  # it answers JSON to whatever is asked
    given = [one.format(file=file, key=key_file, target=target) for one in arguments]
    where = () if "--gateway" in given else ("--gateway", stack.gateway_url)
    refused = finished("paygate", "create", *given, *where)
    assert refused.returncode == code
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("code", "message", "option"),
    [
        ("MISSING_PARAMETER", "paymentAddress is required: name the wallet", "--payment-address, or --key-file"),
        ("AUTH_REQUIRED", "this route requires user authentication", "--key-file"),
    ],
)
def test_a_refusal_names_the_option_that_helps(code: str, message: str, option: str) -> None:
    with serving(lambda _request: Reply(400, {"error": {"code": code, "message": message}})) as server:
        words = ("--gateway", server.url, "--target", "http://127.0.0.1/", "--price", "1")
        refused = finished("paygate", "create", *words)
    assert (refused.returncode, option in refused.stderr) == (1, True), refused.stderr


def test_what_was_made_is_told_though_it_cannot_be_printed() -> None:
    """The token of a gate without an owner is told by no other answer."""
    made = {"accessUrl": "http://127.0.0.1/abc", "managementToken": "tok"}
    with serving(lambda _request: Reply(201, made)) as server, open("/dev/full", "wb") as out:  # noqa: PTH123 - a device
        words = command("paygate", "create", "--gateway", server.url, "--target", "http://127.0.0.1/", "--price", "1")
        done = subprocess.run(
            words, env=clean_environment(), stdout=out, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "http://127.0.0.1/abc was made" in done.stderr
    assert "managementToken (shown once): tok" in done.stderr
