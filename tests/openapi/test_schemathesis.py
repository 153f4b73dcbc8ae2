"""Schemathesis, with all its checks and along all links, finds nothing that a description does not say.

Who asks is a wallet that is logged in, nobody, or two wallets in turn, neither of which may read what is the other's.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.openapi import programs
from tests.openapi.programs import Program

HERE = Path(__file__).resolve().parent
SHORT = ("--max-examples", "2", "--seed", "1", "--generation-deterministic")
LONG = ("--max-examples", "60", "--seed", "2")


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with programs.served(tmp_path_factory.mktemp("serve")) as program:
        yield program


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with programs.apart(tmp_path_factory.mktemp("apart")) as program:
        yield program


def run(program: Program, part: str, caller: str, folder: Path, *options: str) -> None:
    url = program.url(part)
    known = programs.write(folder / "known.json", {**program.known, "serverUrl": url, "caller": caller})
    if caller == "peers":  # their tokens are to last
        users = programs.write(folder / "users.json", asyncio.run(programs.peers(url)))
        options = (*options, "--auth-wfc", str(users), "--exclude-operation-id", "logout")
    finished = subprocess.run(
        [
            sys.executable,
            *("-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml")),
            *("run", f"{url}/openapi.json", "--no-color", "--continue-on-failure"),
            *("--request-timeout", "60"),  # what it waits for by default a machine with other work may take
            *("--phases", "coverage,fuzzing,stateful", *options),
        ],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]),
            "SCHEMATHESIS_HOOKS": "tests.openapi.hooks",
            "OPENAPI_KNOWN": str(known),
        },
        check=False,
        capture_output=True,
        text=True,
    )
    report = finished.stdout + finished.stderr
    assert finished.returncode == 0, report
    for phase in ("Coverage", "Fuzzing", "Stateful"):
        assert f"✅ {phase}" in report, report


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("part", "caller"), [("gateway", "peers"), ("hub", "nobody")])
def test_schemathesis_finds_nothing_at_both_in_one_process(
    serve: Program, part: str, caller: str, tmp_path: Path
) -> None:
    run(serve, part, caller, tmp_path, *SHORT)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("part", "caller"), [("gateway", "nobody"), ("hub", "wallet")])
def test_schemathesis_finds_nothing_at_gateway_and_hub_apart(
    apart: Program, part: str, caller: str, tmp_path: Path
) -> None:
    run(apart, part, caller, tmp_path, *SHORT)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("caller", ["wallet", "nobody", "peers"])
@pytest.mark.parametrize("part", ["gateway", "hub"])
@pytest.mark.parametrize("form", ["serve", "apart"])
def test_schemathesis_finds_nothing_in_a_long_time(
    request: pytest.FixtureRequest, form: str, part: str, caller: str, tmp_path: Path
) -> None:
    run(request.getfixturevalue(form), part, caller, tmp_path, *LONG)
