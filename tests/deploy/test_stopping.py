"""What starts the program by deploy/ gives it longer to stop than it takes, and settings that are right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tests.cli.processes import configured, finished
from tests.deploy.proxies import DEPLOY
from tollkeeper.settings import Role, load_settings

KUBERNETES = tuple(yaml.safe_load_all((DEPLOY / "kubernetes" / "tollkeeper.yaml").read_text()))


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = (one for one in KUBERNETES if one["kind"] == kind)
    return dict(found)


def test_a_stop_may_take_longer_than_the_program_waits_for_its_calls(tmp_path: Path) -> None:
    settings = load_settings(Role.SERVE, configured(tmp_path, "http://127.0.0.1:9"), environ={})
    unit = (DEPLOY / "systemd" / "tollkeeper.service").read_text()
    (of_systemd,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["tollkeeper"]
    (minutes,) = re.fullmatch(r"(\d+)m", compose["stop_grace_period"]).groups()  # type: ignore[union-attr]  # fails else
    pod = of_kind("StatefulSet")["spec"]["template"]["spec"]
    hooks = sum(int(words[1]) for words in [pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]])
    given = (int(of_systemd), int(minutes) * 60, pod["terminationGracePeriodSeconds"] - hooks)
    assert min(given) > settings.shutdown_timeout_seconds


def test_the_settings_of_kubernetes_are_right_with_the_keys_that_init_makes(tmp_path: Path) -> None:
    keys = configured(tmp_path / "site").parent / "keys"
    secrets = {
        "TOLLKEEPER_ENCRYPTION_KEYS": "encryption.keys",
        "TOLLKEEPER_AUTH_KEYS": "auth.keys",
        "TOLLKEEPER_SIGNER_KEY": "signer.key",
    }
    text = (DEPLOY / "kubernetes" / "tollkeeper.yaml").read_text()
    assert [name for name, file in secrets.items() if f'{name}="$(cat site/keys/{file})"' not in text] == []
    image = {"TOLLKEEPER_HOST": "0.0.0.0", "TOLLKEEPER_DATA_DIR": str(tmp_path / "data")}  # noqa: S104 - a container's
    environ = image | of_kind("ConfigMap")["data"] | {name: (keys / file).read_text() for name, file in secrets.items()}
    checked = finished("config", "check", "--offline", environ={"TOLLKEEPER_CONFIG": "", **environ})
    assert checked.returncode == 0, checked.stdout + checked.stderr
