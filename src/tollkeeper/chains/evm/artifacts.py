"""The compiled contracts that come with the package. `contracts/build.js` writes them; a test compiles them again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Artifact:
    """A contract's code: `creation` deploys it, `runtime` is what stands on the chain afterwards."""

    name: str
    compiler: str
    creation: bytes
    runtime: bytes


@cache
def load_artifact(name: str) -> Artifact:
    """Return the artifact of a contract in `contracts/`, such as `UsdcTestToken`."""
    text = files("tollkeeper.chains").joinpath("artifacts", f"{name}.json").read_text("utf-8")
    fields = json.loads(text)
    return Artifact(
        name, fields["compiler"], bytes.fromhex(fields["bytecode"][2:]), bytes.fromhex(fields["runtime"][2:])
    )
