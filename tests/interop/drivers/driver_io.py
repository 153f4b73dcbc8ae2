"""One JSON object from standard input, one JSON object to standard output: how tests speak to these drivers.

Each driver is run as a script by the interpreter of one official package's environment, so it imports nothing of
this project but this file and `families`.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def read_request() -> dict[str, Any]:
    """The request: its members are named in each driver's docstring."""
    request: dict[str, Any] = json.load(sys.stdin)
    return request


def write_answer(answer: dict[str, Any]) -> None:
    """Write the answer as one line."""
    sys.stdout.write(json.dumps(answer, default=str) + "\n")


def described(error: BaseException) -> dict[str, str]:
    """An exception of an official package as the answer's `error`."""
    return {"type": type(error).__name__, "message": str(error)}


def paid(status: int, body: str, headers: dict[str, str], receipt: dict[str, Any] | None) -> dict[str, Any]:
    """The answer of a paying driver whose request came back with some response."""
    lower = {name.lower(): value for name, value in headers.items()}
    return {"status": status, "body": body, "headers": lower, "receipt": receipt, "error": None}


def unpaid(error: BaseException) -> dict[str, Any]:
    """The answer of a paying driver whose client raised instead of returning a response."""
    return {"status": None, "body": None, "headers": {}, "receipt": None, "error": described(error)}
