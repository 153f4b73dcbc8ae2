"""What starts the program by deploy/ gives it time to stop, settings that are right, and copies of its database."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.processes import clean_environment, configured, finished
from tests.deploy.proxies import DEPLOY
from tollkeeper.settings.loading import load_settings
from tollkeeper.settings.model import Role

FOLDER = DEPLOY / "kubernetes"
WORKLOADS = (("tollkeeper.yaml", "StatefulSet"), ("several.yaml", "Deployment"))


def of_kind(name: str, kind: str) -> dict[str, Any]:
    (found,) = (one for one in yaml.safe_load_all((FOLDER / name).read_text()) if one["kind"] == kind)
    return dict(found)


def test_a_stop_may_take_longer_than_the_program_waits_for_its_calls(tmp_path: Path) -> None:
    settings = load_settings(Role.SERVE, configured(tmp_path, "http://127.0.0.1:9"), environ={})
    unit = (DEPLOY / "systemd" / "tollkeeper.service").read_text()
    given = [int(seconds) for seconds in re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)]
    for name, service in (("compose.yaml", "tollkeeper"), ("compose-postgresql.yaml", "gateway-1")):
        period = yaml.safe_load((DEPLOY / name).read_text())["services"][service]["stop_grace_period"]
        given.append(int(period.removesuffix("m")) * 60)
    for workload in WORKLOADS:
        pod = of_kind(*workload)["spec"]["template"]["spec"]
        waits = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
        given.append(pod["terminationGracePeriodSeconds"] - waits)
    assert len(given) == 5
    assert min(given) > settings.shutdown_timeout_seconds


@pytest.mark.parametrize("name", [name for name, _ in WORKLOADS])
def test_the_settings_of_kubernetes_are_right_with_the_keys_that_init_makes(name: str, tmp_path: Path) -> None:
    keys = configured(tmp_path / "site").parent / "keys"
    secrets = {
        "TOLLKEEPER_ENCRYPTION_KEYS": "encryption.keys",
        "TOLLKEEPER_AUTH_KEYS": "auth.keys",
        "TOLLKEEPER_SIGNER_KEY": "signer.key",
    }
    text = (FOLDER / name).read_text()
    assert [key for key, file in secrets.items() if f'{key}="$(cat site/keys/{file})"' not in text] == []
    image = {"TOLLKEEPER_HOST": "0.0.0.0", "TOLLKEEPER_DATA_DIR": str(tmp_path / "data")}  # noqa: S104 - a container's
    settings = of_kind(name, "ConfigMap")["data"]
    environ = image | settings | {key: (keys / file).read_text() for key, file in secrets.items()}
    checked = finished("config", "check", "--offline", environ={"TOLLKEEPER_CONFIG": "", **environ})
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_who_has_an_address_in_compose_finds_it_free_and_keeps_it_when_made_anew() -> None:
    """A gateway too: nginx looks its name up once, and goes on asking where that was."""
    stack = yaml.safe_load((DEPLOY / "compose-postgresql.yaml").read_text())
    places = {name: one["networks"] for name, one in stack["services"].items()}
    taken = {name: ip_address(own["inside"]["ipv4_address"]) for name, own in places.items() if own != ["inside"]}
    (pool,) = stack["networks"]["inside"]["ipam"]["config"]
    upstream = re.findall(r"^    server ([\w-]+):8402", (DEPLOY / "nginx" / "several.conf").read_text(), re.MULTILINE)
    assert set(taken) == {"nginx", *upstream}
    assert len(set(taken.values())) == len(taken)
    assert all(address in ip_network(pool["subnet"]) for address in taken.values())
    assert not any(address in ip_network(pool["ip_range"]) for address in taken.values())


def test_the_hourly_copy_is_a_database_and_an_old_one_goes(tmp_path: Path) -> None:
    """The unit's own lines, with what systemd replaces in them replaced, and this program for the installed one."""
    config, copies = configured(tmp_path / "home", "http://127.0.0.1:9"), tmp_path / "copies"
    assert finished("db", "migrate", "--config", config).returncode == 0
    copies.mkdir()
    (copies / "old.db").write_bytes(b"")
    os.utime(copies / "old.db", (0, 0))
    unit = (DEPLOY / "systemd" / "tollkeeper-backup.service").read_text()
    for line in re.findall(r"^ExecStart(?:Post)?=(.*)$", unit, re.MULTILINE):
        said = line.replace("$$", "$").replace("%%", "%").replace("${STATE_DIRECTORY}", str(copies))
        here = said.replace("/opt/tollkeeper/bin/", f"{Path(sys.executable).parent}/")
        words = shlex.split(here.replace("/etc/tollkeeper/tollkeeper.toml", str(config)))
        subprocess.run(words, check=True, env=clean_environment({"STATE_DIRECTORY": str(copies)}))
    (copy,) = copies.iterdir()
    assert copy.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(copy)) as made:
        assert made.execute("SELECT count(*) FROM schema_migrations").fetchone()[0] > 0
