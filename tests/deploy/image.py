"""The image that the Dockerfile describes, without an engine: its steps carried out in roots of this machine's Debian.

Simulated: the base image. Its place take this machine's /usr, read-only, and a copy of its /etc; python3 is
this machine's. Real: each step's command, in a root of its own, as its user and with its environment; what is copied
from the source is what .dockerignore lets through. Needs root, or user namespaces with ranges of ids (`newuidmap`).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.test_project import ROOT

_STEP_SECONDS: Final = 600  # of a machine that has other work
_OF_THE_MACHINE: Final = ("bin", "sbin", "lib", "lib64")
# What reaches registries from this machine, and is no part of an image.
_REACHING: Final = re.compile(r"(?i)^(pip_(index_url|cert|default_timeout)|ssl_cert_file|\w+_proxy)$")
_MOUNTS: Final = """\
mount --bind /usr "$0/usr" && mount -o remount,ro,bind "$0/usr"
mount --rbind /dev "$0/dev"
mount -t proc proc "$0/proc"
ip link set lo up 2>/dev/null || true
root=$0; user=$1; folder=$2; shift 2
exec chroot --userspec="$user" "$root" /usr/bin/env --ignore-environment --chdir="$folder" "$@"
"""


@dataclass
class Stage:
    """One stage: its root, and what was said of its environment so far."""

    root: Path
    environ: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})
    folder: str = "/"
    user: str = "0:0"
    said: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("usr", "dev", "proc", "opt", "var/lib", "var/tmp", "run", "tmp"):
            (self.root / name).mkdir(parents=True)
        for name in ("tmp", "var/tmp"):
            (self.root / name).chmod(0o1777)
        for name in _OF_THE_MACHINE:
            link = Path("/", name)
            if link.is_symlink():
                (self.root / name).symlink_to(link.readlink())
        shutil.copytree("/etc", self.root / "etc", symlinks=True, ignore=_unreadable)

    def command(self, *words: str, environ: Mapping[str, str] | None = None, has_network: bool = False) -> list[str]:
        """The command that runs these words in this root, as its user."""
        ids = [] if os.geteuid() == 0 else ["--user", "--map-root-user", "--map-auto"]
        away = [] if has_network else ["--net"]
        given = [f"{name}={value}" for name, value in {**self.environ, **(environ or {})}.items()]
        namespaces = ["unshare", *ids, *away, "--mount", "--pid", "--fork", "--kill-child", "--"]
        return [*namespaces, "sh", "-e", "-c", _MOUNTS, str(self.root), self.user, self.folder, *given, *words]

    def run(
        self, *words: str, environ: Mapping[str, str] | None = None, has_network: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """A command in it that ends by itself."""
        return subprocess.run(
            self.command(*words, environ=environ, has_network=has_network),
            capture_output=True,
            text=True,
            timeout=_STEP_SECONDS,
            check=False,
        )

    def inside(self, path: str) -> Path:
        """The place of the image's path, from its working directory."""
        return self.root / str(Path(self.folder, path)).lstrip("/")


def _unreadable(folder: str, names: list[str]) -> set[str]:
    """What a copy of /etc leaves out."""
    paths = {name: Path(folder, name) for name in names}
    return {name for name, path in paths.items() if not path.is_symlink() and not os.access(path, os.R_OK)}


def build(folder: Path) -> Stage:
    """The image's last stage."""
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for name, rest in _instructions((ROOT / "Dockerfile").read_text()):
        words = shlex.split(rest)
        if name == "FROM":
            stage = Stage(folder / str(len(stages)))
            stages[words[2] if len(words) > 2 else ""] = stage
        elif stage is not None:
            _carry_out(stage, name, rest, words, stages)
    assert stage is not None
    return stage


def _instructions(text: str) -> list[tuple[str, str]]:
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", lines)
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in joined.splitlines() if line.strip()]


def _carry_out(stage: Stage, name: str, rest: str, words: list[str], stages: Mapping[str, Stage]) -> None:
    if name == "RUN":
        reaching = {key: value for key, value in os.environ.items() if _REACHING.match(key)}
        done = stage.run("sh", "-e", "-c", rest, environ=reaching, has_network=True)
        assert done.returncode == 0, f"{rest}\n{done.stdout}\n{done.stderr}"
    elif name == "COPY":
        _copy(stage, words, stages)
    elif name == "WORKDIR":
        stage.folder = rest
        stage.inside("").mkdir(parents=True, exist_ok=True)
    elif name == "ENV":
        stage.environ |= dict(word.split("=", 1) for word in words)
    elif name == "USER":
        stage.user = rest
    elif name in {"ENTRYPOINT", "CMD", "VOLUME", "EXPOSE", "HEALTHCHECK"}:
        listed = rest[rest.index("[") :] if "[" in rest else json.dumps(words)
        stage.said[name] = json.loads(listed)
    else:
        raise AssertionError(f"{name} is not played here")


def _copy(stage: Stage, words: list[str], stages: Mapping[str, Stage]) -> None:
    *sources, target = [word for word in words if not word.startswith("--from=")]
    named = [word.removeprefix("--from=") for word in words if word.startswith("--from=")]
    base = stages[named[0]].root if named else ROOT
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for name in sources:
        assert named or name in let_through, name
        source, to = base / name.lstrip("/"), stage.inside(target)
        if source.is_dir():
            left_out = shutil.ignore_patterns() if named else shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, to, symlinks=True, ignore=left_out)
        else:
            shutil.copyfile(source, to / source.name)
