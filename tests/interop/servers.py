"""The official resource servers that the interop tests run, each unmodified, in its own environment (see `setup`)."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tests.interop.official import CACHE, HERE

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from tests.interop.stack import Stack

STOP_TIMEOUT_SECONDS: Final = 10
EVM: Final = "eip155:84532"
SOLANA: Final = "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1"
PRICE_MICRO: Final = 10_000
GUIDE: Final = HERE.parent.parent / "docs" / "guide-resource-server.md"
# How what stands in the guide listens on a free port here, and tells it.
_SERVED: Final = """
import json, socket, uvicorn
listening = socket.create_server(("127.0.0.1", 0))
print(json.dumps({"url": f"http://127.0.0.1:{listening.getsockname()[1]}"}), flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
"""
_LISTENING: Final = """const listening = app.listen(0, "127.0.0.1", () => {
  console.log(JSON.stringify({ url: `http://127.0.0.1:${listening.address().port}` }));
});
"""
# The environment that what stands in the guide runs in, by its heading.
PASTED_IN: Final = {
    ("Today", "FastAPI"): "x402-2.25.0",
    ("Today", "Express"): "npm-servers",
    ("Yesterday", "FastAPI"): "x402-1.0.0",
    ("Yesterday", "Express"): "npm",
}
# What it is called, and the script of servers/ that it is.
SERVERS: Final = {
    "@x402/express-2.27.0": "express.mjs",
    "@x402/hono-2.27.0": "hono.mjs",
    "@x402/next-2.25.0": "next.mjs",
    "x402-2.25.0-fastapi": "paid_server.py",
    "x402-2.25.0-flask": "paid_server.py",
}


@dataclasses.dataclass(frozen=True)
class Sale:
    """Who is paid, on which network (CAIP-2), and the price as the server's own settings write it."""

    pay_to: str
    network: str
    price: str | dict[str, Any]


def sale_on_evm(token: str, token_name: str, pay_to: str) -> Sale:
    """0.01 USDC of a token that signs under this name, whatever the packages know of the network."""
    price = {"amount": str(PRICE_MICRO), "asset": token, "extra": {"name": token_name, "version": "2"}}
    return Sale(pay_to, EVM, price)


def sale_on_solana(stack: Stack) -> Sale:
    """The same on a sandbox's Solana chain."""
    return Sale(stack.solana.pay_to, SOLANA, {"amount": str(PRICE_MICRO), "asset": stack.solana.token})


@contextmanager
def official_server(name: str, facilitator_url: str, sale: Sale) -> Iterator[str]:
    """The URL of a server whose /data is settled once it was served, and whose /upfront before."""
    script, framework = str(HERE / "servers" / SERVERS[name]), name.rpartition("-")[2]
    environment = CACHE / "npm-servers"
    command = [os.environ.get("NODE", "node"), script]
    if script.endswith(".py"):
        environment = CACHE / ("x402-2.25.0-svm" if sale.network == SOLANA else "x402-2.25.0")
        command = [str(environment / "bin" / "python"), script]
    settings = {
        "framework": framework,
        "facilitatorUrl": facilitator_url,
        "payTo": sale.pay_to,
        "network": sale.network,
        "price": sale.price,
    }
    with _running(command, environment, SERVER=json.dumps(settings)) as url:
        yield url


@contextmanager
def official_facilitator_of_version_2(rpc_url: str, private_key: str, network: str) -> Iterator[str]:
    """The URL of npm's facilitator on that node, with this key; it speaks version 2 alone."""
    settings = {"rpcUrl": rpc_url, "privateKey": private_key, "network": network}
    command = [os.environ.get("NODE", "node"), str(HERE / "servers" / "facilitator.mjs")]
    with _running(command, CACHE / "npm-servers", SERVER=json.dumps(settings)) as url:
        yield url


@contextmanager
def pasted(
    title: str, facilitator_url: str, pay_to: str, directory: pathlib.Path, *, at_sandbox: bool = False
) -> Iterator[str]:
    """The URL of the server that stands under that heading of the guide, with these addresses in it.

    At a sandbox with the price that the guide names for it.
    """
    code = _code_under(title)
    if at_sandbox:
        language = "Python" if title.endswith("FastAPI") else "JavaScript"
        version = 2 if title.startswith("Today") else 1
        _, _, price = _code_under("Against the sandbox").partition(f" {language}, version {version}\n")
        code = price.partition("\n\n")[0] + "\n" + code.replace('"$0.01"', "price")
    code = code.replace("https://pay.example.org/hub", facilitator_url).replace("0xYourAddress", pay_to)
    generation, _, kind = title.partition(": ")
    environment = CACHE / PASTED_IN[generation, kind]
    if kind == "FastAPI":
        script = directory / "pasted.py"
        script.write_text(code + _SERVED)
        command = [str(environment / "bin" / "python"), str(script)]
    else:
        script = directory / "pasted.mjs"
        (directory / "node_modules").symlink_to(environment / "node_modules")
        script.write_text(code.replace("app.listen(4021);", _LISTENING))
        command = [os.environ.get("NODE", "node"), str(script)]
    with _running(command, directory) as url:
        yield url


def _code_under(title: str) -> str:
    _, _, section = GUIDE.read_text().partition(f"\n## {title}")
    return "\n".join(line[4:] for line in section.partition("\n## ")[0].splitlines() if line[:4] in {"    ", ""})


@contextmanager
def _running(command: list[str], directory: pathlib.Path, **variables: str) -> Iterator[str]:
    environment = {**os.environ, **variables}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=directory) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
