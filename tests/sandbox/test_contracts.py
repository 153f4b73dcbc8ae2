"""The compiled contracts in the package are what their sources compile to."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tollkeeper.chains.evm.batcher import load_artifact

_ROOT = Path(__file__).parents[2]


def _node() -> str:
    """NODE, or the one on PATH, or the one beside NPM."""
    beside_npm = Path(os.environ.get("NPM", "npm")).with_name("node")
    return os.environ.get("NODE") or shutil.which("node") or str(beside_npm)


def test_artifacts_are_what_the_sources_compile_to() -> None:
    compiler = _ROOT / ".cache" / "contracts"
    assert compiler.is_dir(), "run tests/chains/setup"
    command = [_node(), str(_ROOT / "contracts" / "build.js"), "--check", "--solc", str(compiler)]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    assert "UsdcTestToken" in compiled.stdout


def test_each_source_has_an_artifact() -> None:
    for source in (_ROOT / "contracts").glob("*.sol"):
        artifact = load_artifact(source.stem)
        assert artifact.runtime in artifact.creation
        assert artifact.compiler.startswith("0.8.37")


def test_runtime_code_needs_no_constructor() -> None:
    """Planted code works only where creation would not have written anything into it or into storage."""
    for source in (_ROOT / "contracts").glob("*.sol"):
        text = source.read_text("utf-8")
        assert re.search(r"\bconstructor\s*\(", text) is None
        assert re.search(r"\bimmutable\b", text) is None
