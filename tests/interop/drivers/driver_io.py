"""One JSON object from standard input, one JSON object to standard output: how tests speak to these drivers.

Each driver is run as a script by the interpreter of one official package's environment, so it imports nothing of
this project but this file and `families`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def read_request() -> dict[str, Any]:
    """The request: its members are named in each driver's docstring."""
    request: dict[str, Any] = json.load(sys.stdin)
    return request


def write_answer(answer: dict[str, Any]) -> None:
    """Write the answer as one line."""
    sys.stdout.write(json.dumps(answer, default=str) + "\n")


def pay(buy: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer as a paying driver does: whatever the client raises becomes the answer's error.

    Several `calls` are made one after the other, each of the request with what that call says.
    """
    request = read_request()
    calls = request.pop("calls", None)
    answers = [_pay_once(buy, {**request, **call}) for call in (calls or [{}])]
    write_answer({"answers": answers} if calls else answers[0])


def _pay_once(buy: Callable[[dict[str, Any]], dict[str, Any]], request: dict[str, Any]) -> dict[str, Any]:
    try:
        return buy(request)
    except Exception as error:  # noqa: BLE001  what the client raises is what the caller asked to see
        return unpaid(error)


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
