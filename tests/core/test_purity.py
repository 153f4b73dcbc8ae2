"""The core's source is pure: no float, no clock, no chance, no input or output, and money in one place.

A scan of the syntax trees, which complements the import contracts of pyproject.toml: it sees calls and literals too.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import tollkeeper.core

if TYPE_CHECKING:
    from collections.abc import Iterator

CORE: Final = Path(tollkeeper.core.__file__).parent
SOURCES: Final = sorted(CORE.rglob("*.py"))
MONEY: Final = "usdc.py"

# What the core is built of. A module that is not here is added only after the question whether it is pure.
PURE_MODULES: Final = frozenset(
    {
        "__future__", "base64", "binascii", "collections", "dataclasses", "datetime", "decimal", "encodings", "enum",
        "functools", "hashlib", "hmac", "ipaddress", "itertools", "json", "operator", "re", "string", "struct",
        "types", "typing", "unicodedata", "urllib",
        "Crypto", "coincurve", "cryptography", "jwt", "msgspec", "sha3", "solders", "tollkeeper",
    }
)  # fmt: skip
IMPURE_SUBMODULES: Final = frozenset({"urllib.request", "urllib.robotparser", "Crypto.Random", "jwt.jwks_client"})
IMPURE_CALLS: Final = frozenset(
    {"__import__", "breakpoint", "eval", "exec", "input", "open", "print"}  # of the language
    | {"now", "today", "utcnow", "time", "time_ns", "monotonic", "perf_counter", "fromtimestamp"}  # clocks, floats
    | {"generate", "generate_key", "random", "token_bytes", "token_hex", "urandom", "uuid4"}  # chance
    | {"float", "timestamp", "total_seconds"}  # floats
)  # fmt: skip
MICRO: Final = 1_000_000


def violations(source: str, file_name: str) -> Iterator[str]:
    """What is impure in one module, each as "line: why"."""
    is_money = file_name == MONEY
    for node in ast.walk(ast.parse(source)):
        reason = _in_numbers(node, is_money=is_money) or _in_code(node) or _in_imports(node, is_money=is_money)
        if reason:
            yield f"{getattr(node, 'lineno', 0)}: {reason}"


def _in_numbers(node: ast.AST, *, is_money: bool) -> str | None:
    match node:
        case ast.Constant(value=float() | complex()):
            return "a float literal"
        case ast.BinOp(op=ast.Div()) | ast.AugAssign(op=ast.Div()):
            return "a true division"
        case ast.Constant(value=int(value)) if value == MICRO and not is_money:
            return "the micro-units of a dollar outside usdc.py"
        case ast.BinOp(op=ast.Pow(), left=ast.Constant(value=10), right=ast.Constant(value=6)) if not is_money:
            return "the micro-units of a dollar outside usdc.py"
    return None


def _in_code(node: ast.AST) -> str | None:
    match node:
        case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
            return "asynchronous code"
        case ast.Global():
            return "state outside a value"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in IMPURE_CALLS:
            return f"a call of {name}()"
    return None


def _in_imports(node: ast.AST, *, is_money: bool) -> str | None:
    modules: list[str] = []
    match node:
        case ast.Import(names=names):
            modules = [name.name for name in names]
        case ast.ImportFrom(module=str(module), names=names):
            modules = [module, *(f"{module}.{name.name}" for name in names)]
    for module in modules:
        top = module.partition(".")[0]
        if top not in PURE_MODULES or module in IMPURE_SUBMODULES:
            return f"an import of {module}"
        if top == "decimal" and not is_money:
            return "an import of decimal outside usdc.py"
    above = [name for name in modules if name.startswith("tollkeeper.") and not name.startswith("tollkeeper.core")]
    return f"an import of {above[-1]}, which is above the core" if above else None


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(CORE).as_posix())
def test_core_module_is_pure(path: Path) -> None:
    assert list(violations(path.read_text(encoding="utf-8"), path.name)) == []


@pytest.mark.parametrize(
    "source",
    [
        "x = 0.5",
        "x = 1j",
        "x = a / b",
        "x /= 2",
        "x = float(y)",
        "x = delta.total_seconds()",
        "x = price * 1_000_000",
        "x = price * 10**6",
        "async def f(): pass",
        "def f():\n    global x\n    x = 1",
        "x = datetime.now(UTC)",
        "x = datetime.fromtimestamp(0, UTC)",
        "x = AESGCM.generate_key(256)",
        "x = open(path)",
        "import time",
        "import os.path",
        "import urllib.request",
        "from urllib import request",
        "from urllib.request import urlopen",
        "from Crypto import Random",
        "from decimal import Decimal",
        "import decimal",
        "from tollkeeper.settings import Settings",
        "from tollkeeper import api",
        "import tollkeeper.storage",
    ],
)
def test_scan_finds_what_is_impure(source: str) -> None:
    assert len(list(violations(source, "wire.py"))) >= 1


@pytest.mark.parametrize("source", ["from decimal import Decimal", "MICRO_PER_USDC = 1_000_000", "x = 10**6"])
def test_money_may_use_decimal_and_micro_units(source: str) -> None:
    assert list(violations(source, MONEY)) == []
    assert len(list(violations(source, "wire.py"))) == 1


@pytest.mark.parametrize(
    "source", ["x = a // b", "from urllib.parse import urlsplit", "from tollkeeper.core import evm"]
)
def test_scan_lets_pass_what_is_pure(source: str) -> None:
    assert list(violations(source, "wire.py")) == []
