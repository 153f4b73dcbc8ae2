"""Gateway and hub apart, as programs that are killed, stopped and started anew on the same ports."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import Running, running
from tests.cli.program import START_SECONDS, Program, Site
from tests.faults.aftermath import Site as Configured
from tests.ports import free_port

ENDS_SECONDS = 30


class Part:
    """Gateway or hub: configured, on a port of its own, started anew whenever it was killed."""

    def __init__(self, name: str, directory: Path, chain: ChainUnderTest, port: int, **environ: str) -> None:
        self.name = name
        self.site = Site(directory / name, chain)
        self.site.environ |= environ
        self.url = f"http://127.0.0.1:{port}"
        self._address = "127.0.0.1", port
        self.program: Program
        self._command = (name, "--config", self.site.config, "--port", str(port))
        self._running = ExitStack()

    def start(self) -> None:
        process: Running = self._running.enter_context(running(*self._command, environ=self.site.environ))
        said = process.wait_for_event("serving", START_SECONDS)
        self.program = Program(self.site, process, said["url"])

    def kill(self) -> None:
        """End it without a word."""
        os.kill(self.program.pid, signal.SIGKILL)
        self.program.process.process.wait(30)
        deadline = time.monotonic() + ENDS_SECONDS
        while self._is_listened_on():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self.stop()

    def _is_listened_on(self) -> bool:
        try:
            socket.create_server(self._address).close()
        except OSError:
            return True
        return False

    def stop(self) -> None:
        """No process runs any more."""
        self._running.close()

    @property
    def configured(self) -> Configured:
        return Configured(self.site.config, self.site.environ, self.name)


@contextmanager
def parts_of(directory: Path, chain: ChainUnderTest) -> Iterator[dict[str, Part]]:
    """Both, running."""
    ports = {"hub": free_port(), "gateway": free_port()}
    hub_url, gateway_url = (f"http://127.0.0.1:{ports[name]}" for name in ("hub", "gateway"))
    environs = {
        "hub": {"TOLLKEEPER_PUBLIC_URL": hub_url, "TOLLKEEPER_TRUSTED_ISSUERS": gateway_url},
        "gateway": {
            "TOLLKEEPER_PUBLIC_URL": gateway_url,
            "TOLLKEEPER_HUB_URL": hub_url,
            "TOLLKEEPER_TRUSTED_ISSUERS": hub_url,
        },
    }
    parts = {name: Part(name, directory, chain, ports[name], **environs[name]) for name in ports}
    try:
        for part in parts.values():
            part.start()
        yield parts
    finally:
        for part in parts.values():
            part.stop()
