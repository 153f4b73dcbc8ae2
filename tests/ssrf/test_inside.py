"""No target leads inside: every vector at create, update and call, with a canary at every address (security A-41).

`inside.py` does it once, in namespaces of its own; here it is judged.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ssrf.inside import ALTERNATIONS
from tests.ssrf.namespace import command
from tests.ssrf.vectors import FORBIDDEN_V4, FORBIDDEN_V6, PUBLIC, TURNING

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 110
# Link-local addresses need a zone, and nobody connects to a group: whatever was sent there would be seen all the same.
NOT_CONNECTABLE = {"224.0.0.1", "239.255.255.250", "255.255.255.255"}
NOT_CONNECTABLE |= {address for address in FORBIDDEN_V6 if address.startswith(("fe8", "feb", "ff"))}
THE_TARGETS_OWN = f"::ffff:{PUBLIC}"  # for a socket this is the public target


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the program in the namespace found."""
    path = tmp_path_factory.mktemp("ssrf") / "found.json"
    ran = subprocess.run(
        command(sys.executable, "-m", "tests.ssrf.inside", str(path)),
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    return json.loads(path.read_text())


def test_a_canary_sits_at_every_forbidden_address_and_sings(found: Any) -> None:
    connectable = {*FORBIDDEN_V4, *FORBIDDEN_V6} - NOT_CONNECTABLE
    assert set(found["knocked"]) == connectable
    assert found["sensed_by_canaries"] == found["sensed_by_watch"] == len(connectable - {THE_TARGETS_OWN})


def test_no_canary_was_reached_and_no_packet_was_sent_to_any(found: Any) -> None:
    assert found["seen"] == []
    assert found["hit"] == []
    assert found["lost"] == 0


@pytest.mark.parametrize("stage", ["create", "update"])
def test_no_vector_is_taken_as_a_target(found: Any, stage: str) -> None:
    outcomes = [outcome for outcome in found["vectors"] if outcome["stage"] == stage]
    assert len({outcome["url"] for outcome in outcomes}) >= 500
    assert [outcome for outcome in outcomes if (outcome["status"], outcome["code"]) != (400, "INVALID_PARAMETER")] == []


def test_no_vector_that_is_stored_already_is_called(found: Any) -> None:
    outcomes = [outcome for outcome in found["vectors"] if outcome["stage"] == "call"]
    assert len({outcome["url"] for outcome in outcomes}) >= 500
    refused = {(400, "INVALID_PARAMETER"), (502, "UPSTREAM_BLOCKED")}
    assert [outcome for outcome in outcomes if (outcome["status"], outcome["code"]) not in refused] == []


def test_a_name_that_turns_inside_after_the_check_is_blocked(found: Any) -> None:
    assert found["turned"]["before"] == [200] * len(TURNING)
    assert found["turned"]["after"] == ["UPSTREAM_BLOCKED"] * len(TURNING)


def test_a_name_that_alternates_reaches_what_is_public_or_nothing(found: Any) -> None:
    alternated = found["turned"]["alternated"]
    assert len(alternated) == ALTERNATIONS
    assert set(alternated) <= {"public", "UPSTREAM_BLOCKED"}
    assert "UPSTREAM_BLOCKED" in alternated


def test_a_redirect_inside_is_the_callers_to_follow(found: Any) -> None:
    assert len(found["redirects"]) == len(FORBIDDEN_V4) + len(FORBIDDEN_V6)
    assert [one for one in found["redirects"] if one[1:] != [302, one[0]]] == []


def test_a_machine_that_permits_no_namespace_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\necho Operation not permitted >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"SYS_ADMIN.*user namespaces.*Operation not permitted"):
        command("true")
    refusing.unlink()
    with pytest.raises(RuntimeError, match=r"this machine permits none.*unshare"):
        command("true")
