"""`tollkeeper doctor`: a sound installation is called good, and each fault is found and told with its remedy."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import configured, finished
from tests.cli.program import Program, Site
from tests.interop.local_server import Reply, Request, serving
from tests.ports import free_port
from tollkeeper.sandbox.wallets import derive_wallets

NOWHERE = "http://127.0.0.1:9"


def examined(
    config: Path, *words: str | Path, **environ: str
) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    named = {f"TOLLKEEPER_{name.upper()}": value for name, value in environ.items()}
    done = finished("doctor", *words, "--config", config, "--json", environ=named)
    assert "Traceback" not in done.stderr, done.stderr
    return json.loads(done.stdout), done


def told(found: dict[str, Any], kind: str, word: str) -> dict[str, Any]:
    """The one finding of that kind in which the word is."""
    finding: dict[str, Any]
    (finding,) = (one for one in found[kind] if word in one["problem"])
    assert finding["remedy"]
    return finding


def buy(program: Program, *words: str | Path) -> None:
    assert finished("pay", f"{program.url}/weather", *words).returncode in {0, 4}


def test_a_sound_installation_is_called_good_and_a_gate_whose_target_fails_is_not(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    site = Site(tmp_path, embedded_chain)
    key = tmp_path / "buyer.key"
    key.write_text(derive_wallets().buyer.private_key_hex)
    key.chmod(0o600)
    with serving(lambda _request: Reply(200, {})) as target, site.serving() as program:
        gate = ("paygate", "create", "--target", target.url, "--price", "0.01", "--slug", "weather")
        assert finished(*gate, "--gateway", program.url).returncode == 0
        link = f"{program.url}/weather"
        here = {"public_url": program.url, "asset_name_base_sepolia": embedded_chain.token_name}
        found, done = examined(site.config, link, **here)
        assert (done.returncode, found["ok"]) == (0, True), found
        for fact in (
            "public_url: ",
            "paths arrive as they are sent",
            "bodies are not held",
            "streams of events are not held",
            "GiB are free at ",
        ):
            assert any(fact in one for one in found["good"]), (fact, found)
        assert any("has money for" in one for one in found["good"] + [one["problem"] for one in found["warnings"]])
        assert any("its target answers 200 in " in one for one in found["good"])
        changed = finished("paygate", "update", link, "--target", NOWHERE)
        assert changed.returncode == 0, changed.stderr
        found, done = examined(site.config, link, **here)
        assert done.returncode == 1
        assert "--target" in told(found, "errors", "its target does not answer: ")["remedy"]
        found, done = examined(site.config, f"{program.url}/nothing", **here)
        assert told(found, "errors", "it answers 404, and not 402")


def test_a_server_that_does_not_answer_from_outside_is_told(tmp_path: Path) -> None:
    config = configured(tmp_path)
    found, done = examined(config, public_url=f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "start the server" in told(found, "errors", "does not answer")["remedy"]
    with serving(lambda _request: Reply(200, {})) as other:
        found, _ = examined(config, public_url=other.url)
    assert told(found, "errors", "is answered by something else (status 200)")


def test_a_proxy_that_mends_paths_and_holds_bodies_is_told(tmp_path: Path) -> None:
    """It answers for every path, and reads a whole body before it does."""
    config = configured(tmp_path)
    with serving(
        lambda _request: Reply(
            200, {"keys": [{"kid": "other"}], "sent": "data: first data: second"}, {"X402-Version": "1"}
        )
    ) as proxy:
        found, _ = examined(config, public_url=proxy.url)
    assert "merge_slashes off" in told(found, "errors", "a proxy changes paths on the way")["remedy"]
    assert "proxy_request_buffering off" in told(found, "warnings", "holds a body until it is whole")["remedy"]
    assert "proxy_buffering off" in told(found, "warnings", "holds a stream of events until")["remedy"]
    assert told(found, "errors", "leads to a server with other keys")


def node(head: int, age_seconds: float) -> Any:
    """A node at this block, which answers neither batches nor the logs of many blocks."""

    def answer(request: Request) -> Reply:
        asked = request.json()
        if isinstance(asked, list):
            return Reply(200, {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "no batches"}})
        block = {"number": hex(head), "timestamp": hex(int(time.time() - age_seconds)), "hash": "0x" + "11" * 32}
        results = {"eth_getBlockByNumber": block, "eth_chainId": hex(84532), "eth_blockNumber": hex(head)}
        if asked["method"] in results:
            return Reply(200, {"jsonrpc": "2.0", "id": asked["id"], "result": results[asked["method"]]})
        return Reply(200, {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32005, "message": "too many"}})

    return answer


@pytest.mark.parametrize(
    ("age_seconds", "kind", "said"),
    [
        (-60, "errors", r"this machine's clock is \d+ s behind the newest block of node"),
        (600, "warnings", r"the newest block of node \d is 6\d\d s old"),
    ],
)
def test_a_node_out_of_step_or_with_limits_is_told(tmp_path: Path, age_seconds: int, kind: str, said: str) -> None:
    config = configured(tmp_path)
    with serving(node(1_000, age_seconds)) as first, serving(node(900, 1)) as second:
        found, _ = examined(config, rpc_url_base_sepolia=f"{first.url},{second.url}")
    assert any(re.search(said, one["problem"]) for one in found[kind]), found
    assert told(found, "warnings", "is 100 blocks behind the others")
    problems = [one["problem"] for one in found["warnings"]]
    assert sum("the logs of 1000 blocks" in one for one in problems) == 2, problems


def test_findings_are_told_in_words(tmp_path: Path) -> None:
    done = finished("doctor", "--config", configured(tmp_path), environ={"TOLLKEEPER_PUBLIC_URL": NOWHERE})
    assert done.returncode == 1
    assert "error: public_url: http://127.0.0.1:9 does not answer" in done.stdout
    assert "not checked: " in done.stdout
