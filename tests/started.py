"""Starts a program of the tests as `tollkeeper` starts: `python -m tests.started MODULE [ARGUMENT ...]`.

A test run starts more than a thousand programs, and what they import is most of what that takes.
"""

import runpy
import sys
from collections.abc import Mapping
from typing import Final

from tollkeeper.serving.process.imports import collect_rarely, leave_rich_out

# Whatever is reached here has a certificate of its own or none; all those of the public authorities, which are read
# twice as `aiohttp` is imported, are a tenth of a start.
_NO_AUTHORITIES: Final = {"SSL_CERT_FILE": ""}  # as good as none named, for OpenSSL and for the official clients


def program(module: str, *arguments: str) -> list[str]:
    """The command line that runs such a module."""
    return [sys.executable, "-m", "tests.started", module, *arguments]


def light_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a program starts sooner."""
    return {**environ, **_NO_AUTHORITIES}


if __name__ == "__main__":
    collect_rarely()
    leave_rich_out()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
