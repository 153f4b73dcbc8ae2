"""`tollkeeper up`: an API of one's own, sold within a minute, and its requests as they come.

It uses the gateway that is named or already runs here. Else it starts one: of the configuration where there is one, of
the sandbox where there is none. What it started ends with it.
"""
# ruff: noqa: PLC0415 - a command imports what it runs, so that the others start at once

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tollkeeper.cli.options import Config, check_url
from tollkeeper.cli.output import EXIT_FAILED, refuse, tell
from tollkeeper.cli.owner.at_gateway import AsJson, Gateway, OwnerKey, at_gateway
from tollkeeper.cli.owner.gate_fields import with_gate_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tollkeeper.client.gateway_account import GatewayAccount
    from tollkeeper.core.json_types import JsonMapping

_READY_SECONDS: Final = 90
_STOP_SECONDS: Final = 60
_LOOK_SECONDS: Final = 0.1
_NEWEST: Final = 100


@dataclass(frozen=True, slots=True)
class _Running:
    """A gateway to sell at. `process` is what was started for it, `is_sandbox` tells play money."""

    url: str
    process: subprocess.Popen[bytes] | None = None
    is_sandbox: bool = False


@with_gate_fields(is_update=False, leave_out=("targetUrl",))
def up_command(
    target: Annotated[str, typer.Argument(metavar="URL", help="The URL whose calls are sold.")],
    *,
    fields: dict[str, Any],
    config: Config = None,
    gateway: Gateway = None,
    port: Annotated[int, typer.Option(help="The sandbox's port; 0 takes a free one.", min=0, max=65535)] = 8402,
    key_file: OwnerKey = None,
    as_json: AsJson = False,
) -> None:
    """Sell an API: start what that needs, make a PayGate, print its link, and show its requests until Ctrl-C.

    A gateway that runs at --gateway, or here, is used. Else one is started: of the configuration, or the sandbox with
    play money where there is no configuration.

    Example: tollkeeper up http://localhost:3000/weather --price 0.01 --credits 10
    """
    check_url("the target", target)
    with _gateway(gateway, config, port, target) as running:
        wanted = {**fields, "targetUrl": target}
        at_gateway(running.url, key_file, lambda account: _sell(account, running, wanted, as_json=as_json))
        if running.process is not None:
            tell("\nStopping.", err=True)
    if running.is_sandbox:
        tell("The sandbox has ended, and its PayGate with it.", err=True)
    elif running.process is not None:
        tell("The gateway has ended. Its PayGate is sold again when the gateway runs.", err=True)
    else:
        tell("\nThe gateway goes on, and its PayGate is still sold there.", err=True)


async def _sell(account: GatewayAccount, running: _Running, fields: Mapping[str, object], *, as_json: bool) -> None:
    """Make the gate and show its requests until a signal. Raises: RefusedError."""
    import asyncio
    import signal

    from tollkeeper.cli.owner.records import show_requests
    from tollkeeper.client.gateway_account import Gate
    from tollkeeper.client.requests import RefusedError

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for ending in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(ending, stop.set)
    made = await account.create(fields)
    if as_json:
        tell(json.dumps({**made, "dashboardUrl": f"{running.url}/app"}))
    else:
        _show(made, running)
    sys.stdout.flush()
    for warning in made.get("warnings", ()):
        tell(f"warning: {warning['message']}", err=True)
    gate = Gate(made["id"], made.get("managementToken"))
    following = asyncio.ensure_future(
        show_requests(account, {made["slug"]: gate}, {"limit": _NEWEST}, follow=True, as_json=as_json)
    )
    ended = asyncio.ensure_future(stop.wait())
    await asyncio.wait({following, ended}, return_when=asyncio.FIRST_COMPLETED)
    for task in (following, ended):
        task.cancel()
    failed = following.exception() if following.done() and not following.cancelled() else None
    if failed is not None and not stop.is_set():
        raise RefusedError(f"the requests can no longer be read: {failed}") from failed


def _show(made: JsonMapping, running: _Running) -> None:
    from tollkeeper.settings.sources import typed_command

    link, money = made["accessUrl"], " (play money)" if running.is_sandbox else ""
    wallet = "--test-wallet" if running.is_sandbox else "--key-file wallet.key"
    tell(f"""\
{made["price"]} USDC buys {made["credits"]} calls of {made["targetUrl"]}.
It is paid on {made["network"]}{money} to {made["paymentAddress"]}.

  link       {link}
  look       curl -i '{link}'
  buy        {typed_command()} pay '{link}' {wallet} --max {made["price"]}
  dashboard  {running.url}/app

Its requests are shown here as they come. Stop with Ctrl-C.
""")


@contextmanager
def _gateway(given: str | None, config: Path | None, port: int, target: str) -> Iterator[_Running]:
    """Yield a gateway that answers, and end it if it was started here."""
    from tollkeeper.settings.sources import find_config

    if given is not None:
        yield _Running(given.rstrip("/"))
        return
    found = find_config(config, os.environ)
    here = f"http://127.0.0.1:{port}"
    if found is None and port and _answers(here):
        tell(f"Using the gateway that runs at {here}.", err=True)
        yield _Running(here)
        return
    running = _start_sandbox(port) if found is None else _start_configured(found, target)
    try:
        yield running
    finally:
        if running.process is not None:
            _end(running.process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _start(*words: str, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a command of ours. It gets no Ctrl-C of its own, so that it answers until it is told to stop."""
    return subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "tollkeeper.cli", *words],
        stdout=subprocess.PIPE,
        env={**os.environ, **environ},
        process_group=0,
    )


def _start_sandbox(port: int) -> _Running:
    from tollkeeper.sandbox.libraries import missing_libraries

    if missing := missing_libraries("auto"):
        refuse(missing, code=EXIT_FAILED)
    tell("There is no configuration here: starting the sandbox, with play money.", err=True)
    process = _start("sandbox", "--print-json", "--port", str(port), environ={})
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    line = process.stdout.readline()
    if not line:
        refuse(f"the sandbox did not start on port {port} (--port); nothing was made", code=EXIT_FAILED)
    return _Running(json.loads(line)["gatewayUrl"], process, is_sandbox=True)


def _start_configured(config: Path, target: str) -> _Running:
    """Start the configured gateway, or use it where it already runs."""
    from yarl import URL

    from tollkeeper.core.configuration import is_loopback
    from tollkeeper.settings.loading import load_settings
    from tollkeeper.settings.model import Role

    settings = load_settings(Role.SERVE, config)
    url = settings.public_url.text
    if _answers(url):
        tell(f"Using the gateway of {config}, which runs at {url}.", err=True)
        return _Running(url)
    tell(f"Starting the gateway of {config}.", err=True)
    environ = {"TOLLKEEPER_LOG_LEVEL": os.environ.get("TOLLKEEPER_LOG_LEVEL", "warning")}
    if is_loopback(URL(target).host or "") and settings.public_url.is_loopback and not settings.allow_private_targets:
        tell("Targets on this machine are allowed while it runs (allow_private_targets).", err=True)
        environ["TOLLKEEPER_ALLOW_PRIVATE_TARGETS"] = "true"
    process = _start("serve", "--config", str(config), environ=environ)
    deadline = time.monotonic() + _READY_SECONDS
    while not _answers(url):
        if process.poll() is not None:
            refuse("the gateway did not start; nothing was made", code=EXIT_FAILED)
        if time.monotonic() > deadline:
            _end(process)
            refuse(f"{url} does not answer: is that where this machine is reached (public_url)?", code=EXIT_FAILED)
        time.sleep(_LOOK_SECONDS)
    return _Running(url, process)


def _answers(url: str) -> bool:
    """Tell whether a gateway of ours is ready at this URL."""
    from http.client import HTTPException
    from urllib.request import ProxyHandler, build_opener

    try:
        with build_opener(ProxyHandler({})).open(f"{url}/readyz", timeout=5) as answer:
            return bool(answer.status == 200 and answer.headers.get("X402-Version") is not None)
    except (HTTPException, OSError):
        return False
