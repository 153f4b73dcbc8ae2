"""`tollkeeper` where the name servers of `*.silent.test` say nothing for as long as the file in $BENCH_SILENT exists.

Before, those names are this machine's. It may open 1,024 files and connections, as many systems have it.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable

OPEN_MAX: Final = 1024
_SILENT_SECONDS: Final = 20  # as the system's own look-up waits


def silenced(real: Callable[..., Any], silent: Path) -> Callable[..., Any]:
    """The system's look-up, but for those names."""

    def looked_up(host: Any, *rest: Any, **named: Any) -> Any:  # noqa: ANN401 - as the real one
        if str(host).endswith(".silent.test"):
            if silent.exists():
                time.sleep(_SILENT_SECONDS)
                raise socket.gaierror(socket.EAI_AGAIN, "no name server answers")
            host = "127.0.0.1"
        return real(host, *rest, **named)

    return looked_up


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_MAX, OPEN_MAX))
    socket.getaddrinfo = silenced(socket.getaddrinfo, Path(os.environ["BENCH_SILENT"]))
    main()
