"""`serve`, `gateway`, `hub`: they start from what `init` wrote, refuse what they must, and lose no accepted request."""

from __future__ import annotations

import signal
import socket
import sqlite3
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cli import processes
from tests.cli.processes import START_SECONDS, Running, ask
from tests.node_thread import run_in_thread
from tests.ports import free_port
from tollkeeper.sandbox.evm.node import EvmNode

# An interpreter is started for each: it is about starting.
finished = partial(processes.finished, is_forked=False)
running = partial(processes.running, is_forked=False)


@pytest.fixture(scope="module")
def rpc_url() -> Iterator[str]:
    with run_in_thread(EvmNode()) as node:
        yield node.url


@pytest.fixture
def config(tmp_path: Path, rpc_url: str) -> Path:
    made = finished("init", "--dir", tmp_path, "--rpc-url", rpc_url)
    assert made.returncode == 0, made.stderr
    return tmp_path / "tollkeeper.toml"


def url_of(process: Running) -> str:
    url: str = process.wait_for_event("serving")["url"]
    return url


def test_serve_starts_from_what_init_wrote(config: Path) -> None:
    with running("serve", "--config", config, "--port", "0") as process:
        url = url_of(process)
        for prefix in ("", "/hub"):
            assert ask(f"{url}{prefix}/healthz").status == 200
            ready = ask(f"{url}{prefix}/readyz")
            assert ready.status == 200, ready.body
        kinds = ask(f"{url}/hub/supported").json()["kinds"]
        assert [kind["network"] for kind in kinds] == ["eip155:84532", "base-sepolia"]
        assert kinds[0]["extra"] == {"name": "USD Coin", "version": "2"}
        assert ask(f"{url}/hub").status == 404
        assert ask(f"{url}/hubris").status == 404
        process.process.send_signal(signal.SIGTERM)
        assert process.exit_code() == 0
        assert process.lines()[-1]["event"] == "stopped"


def test_a_ring_that_lacks_the_key_of_what_is_stored_is_told_and_no_fault(config: Path) -> None:
    """Of a backup from before two rotations: the operator may put the key back behind the start (guide, 3)."""
    assert finished("db", "migrate", "--config", config).returncode == 0
    former = finished("keys", "list", "--config", config).stdout.split()[0]
    assert finished("keys", "rotate", "--config", config).returncode == 0
    with running("serve", "--config", config, "--port", "0") as process:
        process.wait_for_event("values_resealed")
    assert finished("keys", "retire", former, "--config", config).returncode == 0
    ring = config.parent / "keys" / "encryption.keys"
    kept = ring.read_text()
    ring.write_text("other:" + "5e" * 32 + "\n")
    checked = finished("config", "check", "--config", config)
    assert checked.returncode == 0
    assert "1 values in the database are sealed under keys that it lacks" in checked.stdout.replace("\n", " ")
    serve = ("serve", "--config", config, "--port", "0")
    with running(*serve) as process:
        assert process.wait_for_event("retired_keys_do_not_open")["retired"] == [former]
        assert ask(f"{url_of(process)}/healthz").status == 200
    ring.write_text(kept)
    assert "sealed under keys that it lacks" not in finished("config", "check", "--config", config).stdout
    with running(*serve) as process:
        url_of(process)
        assert not [line for line in process.lines() if line["event"] == "retired_keys_do_not_open"]


def test_a_program_in_a_script_s_background_is_interrupted_all_the_same(config: Path) -> None:
    """Shells start it with SIGINT ignored."""
    under = ("env", "--ignore-signal=INT")
    with running("serve", "--config", config, "--port", "0", under=under, is_forked=False) as process:
        assert ask(f"{url_of(process)}/healthz").status == 200
        process.process.send_signal(signal.SIGINT)
        assert process.exit_code() == 0
        assert process.lines()[-1]["event"] == "stopped"


def test_a_hangup_uses_what_can_be_used_at_once_and_names_what_wants_a_restart(config: Path, rpc_url: str) -> None:
    with running("serve", "--config", config, "--port", "0") as process:
        url = url_of(process)
        page = {"Origin": "https://dashboard.example.org"}
        assert ask(f"{url}/api/v1/paygates", headers=page).status == 403
        assert not [line for line in process.lines() if line["level"] == "debug"]
        former = config.read_text()
        config.write_text(
            'cors_origins = ["https://dashboard.example.org"]\nlog_level = "error"\nmin_price = "0.5"\n'
            + former.replace(rpc_url, f"{rpc_url}/another-key")
        )
        rings = config.parent / "keys" / "encryption.keys"
        rings.write_text("another:" + "5e" * 32 + "\n")
        process.process.send_signal(signal.SIGHUP)
        told = process.wait_for_event("settings_reloaded")
        assert told["now_used"] == ["cors_origins", "log_level"]
        assert told["want_a_restart"] == ["encryption_keys", "min_price", "networks.base-sepolia.rpc_url"]
        assert ask(f"{url}/api/v1/paygates", headers=page).headers["access-control-allow-origin"] == page["Origin"]
        config.write_text(former)
        process.process.send_signal(signal.SIGHUP)
        while ask(f"{url}/api/v1/paygates", headers=page).status != 403:
            time.sleep(0.05)
        config.write_text("log_level = 'loud'\n" + former)
        process.process.send_signal(signal.SIGHUP)
        (problem,) = process.wait_for_event("settings_not_reloaded")["problems"]
        assert problem.startswith("log_level: ")
        assert ask(f"{url}/healthz").status == 200
        process.process.send_signal(signal.SIGTERM)
        assert process.exit_code() == 0


def test_a_hangup_never_stops_a_server(config: Path) -> None:
    """A terminal that closes sends some, and so does an operator who has changed a setting."""
    with running("serve", "--config", config, "--port", "0") as process:
        url = url_of(process)
        for _ in range(20):
            process.process.send_signal(signal.SIGHUP)
            assert ask(f"{url}/healthz").status == 200
        process.process.send_signal(signal.SIGTERM)
        process.process.send_signal(signal.SIGHUP)
        assert process.exit_code() == 0
        told = [line["event"] for line in process.lines()]
        assert [event for event in told if event.startswith("stop")] == ["stopping", "stopped"]


def test_a_start_says_what_of_its_settings_lies_open(config: Path) -> None:
    """As `config check` does, which nobody may have asked."""
    environ = {"TOLLKEEPER_PUBLIC_URL": "https://pay.example.org", "TOLLKEEPER_TRUSTED_PROXIES": "0.0.0.0/0"}
    with running("serve", "--config", config, "--port", "0", environ=environ) as process:
        url_of(process)
        told = [line for line in process.lines() if line["event"] == "setting_unwise"]
        told = [line for line in told if line["setting"] not in {"TMPDIR", "ulimit -Hn"}]  # of this machine
        assert [(line["setting"], line["level"]) for line in told] == [("trusted_proxies", "warning")]


def test_the_second_start_finds_what_the_first_one_left(config: Path) -> None:
    slug = ""
    for _ in range(2):
        with running("serve", "--config", config, "--port", "0") as process:
            url = url_of(process)
            if slug:
                assert ask(f"{url}/{slug}").status == 402
            else:
                body = {"targetUrl": "https://example.org/", "price": "0.01", "paymentAddress": "0x" + "12" * 20}
                created = ask(f"{url}/api/v1/paygates", body=body)
                if created.status != 201:  # a machine without a name server
                    assert created.json()["error"]["details"]["field"] == "targetUrl"
                    return
                slug = created.json()["slug"]
            process.process.send_signal(signal.SIGINT)
            assert process.exit_code() == 0


def test_gateway_and_hub_run_apart(config: Path) -> None:
    port = free_port()
    hub_url = f"http://127.0.0.1:{port}"
    with running("gateway", "--config", config, "--port", "0", environ={"TOLLKEEPER_HUB_URL": hub_url}) as gateway:
        url = url_of(gateway)
        assert ask(f"{url}/readyz").status == 503
        with running("hub", "--config", config, "--port", str(port)) as hub:  # it is asked twice a second meanwhile
            assert url_of(hub) == hub_url
            assert ask(f"{hub_url}/readyz").status == 200
            gateway.wait_for_event("hub_answers_again")
            told = [line for line in gateway.lines() if line["event"] == "hub_unreachable"]
            assert {line["hub"] for line in told} == {hub_url}
            assert len(told) == len({line["error"] for line in told}), "each reason once a minute"
            ready = ask(f"{url}/readyz")
            assert ready.status == 200, ready.body
            assert ask(f"{url}/hub/supported").status == 404


def test_a_node_that_does_not_answer_delays_no_start(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        node = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with running(
            "serve", "--config", config, "--port", "0", environ={"TOLLKEEPER_RPC_URL_BASE_SEPOLIA": node}
        ) as process:
            url = url_of(process)
            assert ask(f"{url}/healthz").status == 200
            assert ask(f"{url}/hub/healthz").status == 200
            process.process.send_signal(signal.SIGTERM)
            assert process.exit_code() == 0


def test_every_request_has_a_line_with_its_id_and_without_its_query(config: Path) -> None:
    with running("serve", "--config", config, "--port", "0") as process:
        url = url_of(process)
        answer = ask(f"{url}/nothing-here?query=c0ffee", headers={"X-Payment": "c0ffee"})
        process.process.send_signal(signal.SIGTERM)
        process.exit_code()
        (line,) = [line for line in process.lines() if line["event"] == "request"]
        assert line["request_id"] == answer.headers["x-request-id"]
        assert (line["method"], line["path"], line["status"]) == ("GET", "/nothing-here", 404)
        assert line["duration_ms"] >= 0
        assert "c0ffee" not in process.wrote


def test_every_answer_is_dated_once(config: Path) -> None:
    with running("serve", "--config", config, "--port", "0") as process:
        host, _, port = url_of(process).removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            head = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")[0].lower()
        assert head.count(b"\r\ndate: ") == 1
        assert b"\r\nserver:" not in head


def refused(config: Path, *arguments: str, **environ: str) -> str:
    done = finished("serve", "--config", config, "--port", "0", *arguments, environ=environ)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_database_of_a_newer_version_is_refused_untouched(config: Path) -> None:
    finished("db", "migrate", "--config", config)
    path = config.parent / "data" / "tollkeeper.db"
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO schema_migrations VALUES (9999, 'later', 0, 'x')")
    connection.close()
    before = path.read_bytes()
    assert "newer" in refused(config)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"this is not a database", b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_corrupt_database_is_refused_untouched(config: Path, content: bytes) -> None:
    path = config.parent / "data" / "tollkeeper.db"
    path.parent.mkdir()
    path.write_bytes(content)
    assert str(path) in refused(config)
    assert path.read_bytes() == content
    assert str(path) in finished("config", "check", "--config", config).stdout


@pytest.mark.parametrize("name", ["encryption.keys", "auth.keys", "signer.key"])
def test_a_key_that_is_missing_or_open_to_others_is_refused_before_anything_is_made(config: Path, name: str) -> None:
    key = config.parent / "keys" / name
    key.chmod(0o644)
    assert "chmod 600" in refused(config)
    key.unlink()
    assert str(key) in refused(config)
    assert not (config.parent / "data").exists()


def test_a_database_in_use_is_refused(config: Path) -> None:
    with running("serve", "--config", config, "--port", "0") as process:
        url_of(process)
        assert "in use" in refused(config)


@pytest.mark.parametrize("role", ["serve", "gateway", "hub"])
def test_several_processes_on_sqlite_are_refused_and_one_is_not(config: Path, role: str) -> None:
    sentence = "one process serves on SQLite; several share a PostgreSQL database"
    command = (role, "--config", config, "--port", "0")
    environ = {"TOLLKEEPER_HUB_URL": "http://127.0.0.1:1"} if role == "gateway" else {}
    for options, given in ((("--workers", "2"), {}), (("--workers=100",), {}), ((), {"TOLLKEEPER_WORKERS": "2"})):
        done = finished(*command, *options, environ={**environ, **given})
        assert done.returncode == 3
        assert f"{sentence}; nothing was started" in done.stderr
    assert not (config.parent / "data").exists()
    with running(*command, "--workers", "1", environ=environ) as process:
        url_of(process)


def test_a_port_in_use_is_refused(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = finished("serve", "--config", config, "--port", str(port))
    assert done.returncode == 3
    assert f"127.0.0.1:{port}" in done.stderr


def test_a_database_that_is_taken_away_from_a_running_server_is_told_and_answered_with_503(config: Path) -> None:
    with running("serve", "--config", config, "--port", "0") as process:
        url = url_of(process)
        asked = f"{url}/nothing1"
        assert ask(asked).status == 404
        (database,) = config.parent.glob("data/*.db")
        database.rename(config.parent / "elsewhere.db")
        deadline = time.monotonic() + START_SECONDS
        while (refused := ask(asked)).status != 503:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert (refused.json()["error"]["code"], str(config.parent) in refused.body.decode()) == ("UNAVAILABLE", False)
        assert [ask(f"{url}{part}/readyz").status for part in ("", "/hub")] == [503, 503]
        (told,) = [line for line in process.lines() if line["level"] == "critical"]
        assert f"{database} was deleted" in told["event"]
        process.process.terminate()
        assert process.exit_code() == 0


def test_migrate_says_what_it_applied_and_that_there_is_nothing_left(config: Path) -> None:
    assert "applied 0001_" in finished("db", "migrate", "--config", config).stdout
    second = finished("db", "migrate", "--config", config)
    assert (second.returncode, second.stdout) == (0, "the schema is up to date\n")


def test_no_secret_reaches_a_log_or_an_answer(config: Path) -> None:
    payment = "eyJ4NDAyVmVyc2lvbiI6MX0c0ffeec0ffee"
    keys = [
        path.read_text().rpartition(":")[2].strip().removeprefix("0x") for path in (config.parent / "keys").iterdir()
    ]
    seen: list[bytes] = []
    with running("serve", "--config", config, "--port", "0", environ={"TOLLKEEPER_LOG_LEVEL": "debug"}) as process:
        url = url_of(process)
        headers = {"X-Payment": payment, "Authorization": f"Bearer {payment}", "X-Credit-Token": f"t.{payment}"}
        for path in ("/", "/abcdefgh", "/api/v1/paygates", "/api/v1/credits", "/hub/api/v1/auth/me", "/hub/verify"):
            for method, body in (("GET", None), ("POST", {"signature": payment, "refreshToken": payment})):
                answer = ask(f"{url}{path}?signature={payment}", method=method, body=body, headers=headers)
                assert answer.status < 500
                seen.append(answer.body)
        for login in ("login", "refresh", "introspect"):
            body = {"message": payment, "signature": payment, "refreshToken": payment, "token": payment}
            seen.append(ask(f"{url}/api/v1/auth/{login}", body=body).body)
        process.process.send_signal(signal.SIGTERM)
        process.exit_code()
        logged = process.wrote
    for canary in (*keys, payment, "c0ffee"):
        assert canary not in logged
        assert not any(canary.encode() in body for body in seen)
