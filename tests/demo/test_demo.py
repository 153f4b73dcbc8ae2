"""The demo: exit 0 only when every step was checked and met, on each engine."""

from __future__ import annotations

import pytest

from tests.cli.processes import finished
from tests.interop.official import build_environments
from tollkeeper.sandbox.demo.story import Narrator, StepFailed


@pytest.mark.parametrize("engine", ["pyrevm", "pyevm"])
def test_the_demo_meets_every_check(engine: str) -> None:
    done = finished("demo", "--engine", engine, is_forked=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for said in (
        "CREDITS_EXHAUSTED",
        "INSUFFICIENT_AMOUNT",
        "PAYMENT_EXPIRED",
        "PAYMENT_INVALID",
        "NONCE_ALREADY_USED",
        "The owner sells the same API on Solana",
        "lamports that the hub paid: the fee alone",
    ):
        assert said in done.stdout
    assert done.stdout.rstrip().endswith("Every check was met.")
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 200


def test_official_clients_buy_on_both_chains() -> None:
    """Where there is no Node.js its client is replaced, and the step says who buys."""
    build_environments()
    done = finished("demo", "--client", "official", is_forked=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "official client (x402 1.0.0 from PyPI) buys" in done.stdout
    assert "official client (x402-fetch 1.2.0 from npm) signs" in done.stdout
    assert "official client (x402 2.25.0 from PyPI) calls three times in version 2, and pays once" in done.stdout
    assert "official client (@x402/fetch 2.27.0 from npm) does the same on Solana" in done.stdout
    without = finished("demo", "--client", "official", environ={"NODE": "no-node-here"})
    assert without.returncode == 0, without.stdout + without.stderr
    assert "The buyer signs a transaction" in without.stdout


def test_the_demo_runs_where_a_tick_cannot_be_printed() -> None:
    done = finished("demo", environ={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.returncode == 0, done.stderr


def test_a_check_that_is_not_met_ends_the_step_by_name() -> None:
    said: list[str] = []
    narrator = Narrator(said.append)
    with pytest.raises(StepFailed, match=r"status: expected 402, got 200"), narrator.step("A buyer calls"):
        narrator.check("status", expected=402, actual=200)
    assert (narrator.steps, narrator.current) == (1, "A buyer calls")
    assert not any("✓" in line for line in said)
