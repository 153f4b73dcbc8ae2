"""Schemathesis, with all its checks and along all links, finds nothing that a description does not say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.openapi.conftest import Described

HERE = Path(__file__).resolve().parent
SHORT = ("--max-examples", "5", "--seed", "1")
LONG = ("--max-examples", "60")
PARTS = pytest.mark.parametrize("part", ["gateway", "hub"])


def run(described: Described, part: str, folder: Path, *options: str) -> None:
    url = described.url(part)
    finished = subprocess.run(
        [
            sys.executable,
            *("-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml")),
            *("run", f"{url}/openapi.json", "--no-color", "--continue-on-failure", *options),
        ],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]),
            "SCHEMATHESIS_HOOKS": "tests.openapi.hooks",
            "OPENAPI_SERVER_URL": url,
            "OPENAPI_TARGET_URL": described.stack.target_url,
            "OPENAPI_KEY": described.stack.buyer_key,
            "OPENAPI_PAYER": described.paid["payer"],
            "OPENAPI_NONCE": described.paid["nonce"],
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
@PARTS
def test_schemathesis_finds_nothing(described: Described, part: str, tmp_path: Path) -> None:
    run(described, part, tmp_path, *SHORT)


@pytest.mark.long
@pytest.mark.timeout(1800)
@PARTS
def test_schemathesis_finds_nothing_in_a_long_time(described: Described, part: str, tmp_path: Path) -> None:
    run(described, part, tmp_path, *LONG)
