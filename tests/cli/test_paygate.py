"""`tollkeeper paygate create`: a URL or a file becomes a link that sells it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.processes import finished
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


def offered(url: str) -> dict[str, object]:
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
        (("--price", "0.5", "--target", "http://x/", "--gateway", "http://127.0.0.1:9"), 1, "no answer"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_made(
    stack: Stack, tmp_path: Path, key_file: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    file = tmp_path / "x"
    file.write_text("x")
    given = [one.format(file=file, key=key_file) for one in arguments]
    where = () if "--gateway" in given else ("--gateway", stack.gateway_url)
    refused = finished("paygate", "create", *given, *where)
    assert refused.returncode == code
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr
