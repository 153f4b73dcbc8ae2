"""The guide for targets, run as it stands: its functions in three languages, given requests as a target got them."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.gateway.recording_target import Received

ROOT: Final = Path(__file__).resolve().parents[2]
GUIDE: Final = ROOT / "docs/guide-target.md"
_GO_MAIN: Final = """package main

import (
	"encoding/json"
	"os"

	"target/paygate"
)

func main() {
	var cases []struct {
		Method, Uri string
		Headers, Secrets map[string]string
		Body []byte
	}
	if err := json.NewDecoder(os.Stdin).Decode(&cases); err != nil {
		panic(err)
	}
	results := []string{}
	for _, c := range cases {
		payer, err := paygate.Verify(c.Method, c.Uri, c.Headers, c.Body, c.Secrets)
		if err != nil {
			payer = "refused: " + err.Error()
		}
		results = append(results, payer)
	}
	json.NewEncoder(os.Stdout).Encode(results)
}
"""
_NODE_MAIN: Final = """
import { readFileSync } from "node:fs";
import { verify } from "./verify.mjs";
const results = [];
for (const c of JSON.parse(readFileSync(0))) {
  try {
    results.push(verify(c.method, c.uri, c.headers, Buffer.from(c.body, "base64"), c.secrets));
  } catch (error) {
    results.push(`refused: ${error.message}`);
  }
}
console.log(JSON.stringify(results));
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One request and the secrets that its target knows."""

    method: str
    uri: str
    headers: dict[str, str]
    body: bytes
    secrets: dict[str, str]

    def with_header(self, name: str, value: str) -> Case:
        """The request with another value of a header."""
        return replace(self, headers={**self.headers, name: value})

    def without(self, name: str) -> Case:
        """The request without a header."""
        return replace(self, headers={key: value for key, value in self.headers.items() if key != name})


def case_of(received: Received, origin: str, secrets: dict[str, str]) -> Case:
    """What a target at `origin` makes of a request."""
    assert len({name for name, _ in received.headers}) == len(received.headers)
    return Case(received.method, origin + received.path, dict(received.headers), received.body, secrets)


def _block(language: str) -> str:
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1, language
    return blocks[0]


def _as_json(cases: Sequence[Case]) -> bytes:
    return json.dumps(
        [
            {
                "method": case.method,
                "uri": case.uri,
                "headers": case.headers,
                "body": base64.b64encode(case.body).decode(),
                "secrets": case.secrets,
            }
            for case in cases
        ]
    ).encode()


def _python(_folder: Path, cases: Sequence[Case]) -> list[str]:
    names: dict[str, Any] = {}
    exec(compile(_block("python"), str(GUIDE), "exec"), names)  # noqa: S102 - the guide's own code
    results = []
    for case in cases:
        try:
            results.append(names["verify"](case.method, case.uri, case.headers, case.body, case.secrets))
        except ValueError as error:
            results.append(f"refused: {error}")
    return results


def _node(folder: Path, cases: Sequence[Case]) -> list[str]:
    (folder / "verify.mjs").write_text(_block("js"))
    (folder / "main.mjs").write_text(_NODE_MAIN)
    command = [str(ROOT / "scripts/with-node"), "node", str(folder / "main.mjs")]
    done = subprocess.run(command, input=_as_json(cases), stdout=subprocess.PIPE, check=True, timeout=60)
    results: list[str] = json.loads(done.stdout)
    return results


def _go(folder: Path, cases: Sequence[Case]) -> list[str]:
    (folder / "paygate").mkdir()
    (folder / "paygate/verify.go").write_text(_block("go"))
    (folder / "main.go").write_text(_GO_MAIN)
    (folder / "go.mod").write_text("module target\n\ngo 1.19\n")
    own = {"GOCACHE": str(ROOT / ".cache/go-build"), "GOTOOLCHAIN": "local", "GOPROXY": "off", "GOFLAGS": ""}
    # A cache that is empty has Go compile its library first, which is sooner done without optimising it.
    command = [str(ROOT / "scripts/with-go"), "go", "run", "-gcflags=all=-N -l", "."]
    given: dict[str, Any] = {"input": _as_json(cases), "cwd": folder, "env": {**os.environ, **own}}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=240, **given)
    results: list[str] = json.loads(done.stdout)
    return results


LANGUAGES: Final[dict[str, Callable[[Path, Sequence[Case]], list[str]]]] = {
    "python": _python,
    "node": _node,
    "go": _go,
}
