"""What `make dist` makes: the same bytes of one source, the whole program, and installed anywhere it runs."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import FINISHED_SECONDS, STOP_SECONDS, ask, clean_environment
from tests.test_project import REGISTRIES, ROOT, project_files

EXTRAS = tuple(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
BIN = Path(sys.executable).parent
BUILD = 'from flit_core.buildapi import *; print(build_wheel("{}"))'


def make(to: Path) -> tuple[Path, Path]:
    """The wheel and the sdist that `make dist` writes there."""
    subprocess.run(["make", "dist", f"DIST={to}", f"VENV={BIN.parent}"], cwd=ROOT, check=True, env=clean_environment())  # noqa: S607 - make of the PATH
    (wheel,), (source,) = to.glob("*.whl"), to.glob("*.tar.gz")
    return wheel, source


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make(tmp_path_factory.mktemp("dist"))


def install(environment: Path, *wanted: str) -> dict[str, str]:
    """A clean environment with what is wanted, in the locked versions; the variables that lead to its `tollkeeper`."""
    uv = str(BIN / "uv")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(environment)], check=True)
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", str(environment), "--constraint",
         str(ROOT / "requirements/dev.txt"), *wanted],
        check=True,
    )  # fmt: skip
    path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "PYTHONPATH": "", "VIRTUAL_ENV": str(environment)}


def said_by(environ: dict[str, str], home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What the installed command says, in a directory that has nothing of the source."""
    return subprocess.run(
        ["tollkeeper", *words],  # noqa: S607 - the one that was installed
        cwd=home,
        env=clean_environment(environ),
        capture_output=True,
        text=True,
        timeout=FINISHED_SECONDS,
        check=False,
    )


def test_two_builds_of_one_source_are_the_same_bytes(built: tuple[Path, Path], tmp_path: Path) -> None:
    again = make(tmp_path)
    assert [path.name for path in again] == [path.name for path in built]
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in built]


def test_the_wheel_holds_every_file_of_the_program_and_names_no_registry(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        held = {name: wheel.read(name) for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = b"".join(wheel.read(name) for name in wheel.namelist() if ".dist-info/" in name)
    source = {
        name.removeprefix("src/"): (ROOT / name).read_bytes() for name in project_files() if name.startswith("src/")
    }
    assert {
        suffix for suffix in (".sql", ".html", ".js", ".css", ".json") if not any(n.endswith(suffix) for n in held)
    } == set()
    assert {name: content for name, content in held.items() if source.get(name) != content} == {}
    assert source.keys() - held.keys() == set()
    assert [host for host in REGISTRIES if host.encode() in b"".join([metadata, *held.values()])] == []


def test_the_sdist_alone_builds_the_same_wheel(built: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, source = built
    subprocess.run(["tar", "-xzf", source, "-C", tmp_path], check=True)  # noqa: S607 - tar of the PATH
    (tree,) = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as whole:
        year, *rest = whole.infolist()[0].date_time
    subprocess.run([sys.executable, "-c", BUILD.format(tmp_path)], cwd=tree, check=True)
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(tmp_path / wheel.name) as again:
        assert (year, rest) != (2016, [1, 1, 0, 0, 0])  # the commit's date, not the builder's own
        assert {one.filename: one.CRC for one in again.infolist()} == {
            one.filename: one.CRC for one in whole.infolist()
        }


@pytest.mark.parametrize("extra", EXTRAS)
def test_installed_with_an_extra_it_plays_the_demo(built: tuple[Path, Path], extra: str, tmp_path: Path) -> None:
    extras = ",".join(sorted({extra, "sandbox"}))  # the chains of the demo come with the sandbox alone
    environ = install(tmp_path / "environment", f"{built[0]}[{extras}]")
    home = tmp_path / "home"
    home.mkdir()
    played = said_by(environ, home, "demo")
    assert (played.returncode, played.stderr) == (0, ""), played.stdout + played.stderr
    assert played.stdout.rstrip().endswith("Every check was met.")


def test_installed_without_extras_it_serves_and_says_what_the_demo_lacks(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    environ = install(tmp_path / "environment", str(built[0]))
    home = tmp_path / "home"
    home.mkdir()
    refused = said_by(environ, home, "demo")
    assert (refused.returncode, "pip install 'tollkeeper[sandbox]'" in refused.stderr) == (1, True), refused.stderr
    made = said_by(environ, home, "init", "--rpc-url", "http://127.0.0.1:9", "--payment-address", "0x" + "12" * 20)
    assert made.returncode == 0, made.stderr
    checked = said_by(environ, home, "config", "check", "--offline")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with subprocess.Popen(
        ["tollkeeper", "serve", "--port", "0"],  # noqa: S607 - the one that was installed
        cwd=home,
        env=clean_environment({**environ, "TOLLKEEPER_LOG_FORMAT": "json"}),
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            assert program.stderr is not None
            (url,) = (line["url"] for line in itertools.islice(serving(program.stderr), 1))
            assert ask(f"{url}/healthz").status == 200
            assert b"Tollkeeper" in ask(f"{url}/docs").body
            program.terminate()
            assert program.wait(STOP_SECONDS) == 0
        finally:
            program.kill()


def serving(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The lines of a log that say where it serves."""
    return (told for line in lines if line.startswith("{") and (told := json.loads(line))["event"] == "serving")
