"""Every command of operators: reads its options, calls what carries it out, prints, turns refusals into exit codes.

Exit codes: 0 done; 1 it failed; 2 the command line was wrong; 3 configuration, keys or database cannot be used; 4 and
5 are told by `pay` alone (`tollkeeper.cli.output`).
What this module does not do: compose or run anything itself (`tollkeeper.serving` and `tollkeeper.sandbox` do).
"""
# ruff: noqa: PLC0415 - a command imports what it runs, so that the others start at once

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tollkeeper import __version__
from tollkeeper.cli.completion import completion_command
from tollkeeper.cli.database import backup_command, database_app, restore_command
from tollkeeper.cli.doctor import doctor_command
from tollkeeper.cli.options import Config, ForRole
from tollkeeper.cli.output import EXIT_CONFIGURATION, EXIT_FAILED, refuse, say, tell
from tollkeeper.cli.owner.accounts import login_command, logout_command, whoami_command
from tollkeeper.cli.owner.paygates import paygate_app
from tollkeeper.cli.owner.records import credits_command, history_command, requests_command, stats_command
from tollkeeper.cli.pay import pay_command
from tollkeeper.cli.service import serve
from tollkeeper.cli.up import up_command
from tollkeeper.cli.wallets import wallet_app
from tollkeeper.core.networks import NETWORKS
from tollkeeper.settings.loading import WORKERS_MAX, load_settings
from tollkeeper.settings.model import Role
from tollkeeper.settings.sources import typed_command

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer(
    name="tollkeeper",
    help="A payment-gated API gateway and a payment hub for the x402 protocol.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
payments_app = typer.Typer(help="Payments.", no_args_is_help=True)
config_app = typer.Typer(help="The configuration.", no_args_is_help=True)
contracts_app = typer.Typer(help="Contracts of ours on a chain.", no_args_is_help=True)
keys_app = typer.Typer(help="The keys that encrypt what is stored.", no_args_is_help=True)
app.add_typer(database_app, name="db")
app.add_typer(paygate_app, name="paygate")
app.add_typer(wallet_app, name="wallet")
app.add_typer(config_app, name="config")
app.add_typer(keys_app, name="keys")
app.add_typer(payments_app, name="payments")
app.add_typer(contracts_app, name="contracts")
_COMMANDS: dict[str, Callable[..., None]] = {
    "pay": pay_command,
    "login": login_command,
    "logout": logout_command,
    "whoami": whoami_command,
    "stats": stats_command,
    "requests": requests_command,
    "history": history_command,
    "credits": credits_command,
    "completion": completion_command,
    "up": up_command,
    "doctor": doctor_command,
    "backup": backup_command,
    "restore": restore_command,
}
for name, command in _COMMANDS.items():
    app.command(name)(command)

Host = Annotated[str | None, typer.Option(help="The address to listen on.")]
Port = Annotated[int | None, typer.Option(help="The port to listen on.", min=0, max=65535)]
Workers = Annotated[int | None, typer.Option(help="How many processes serve; on SQLite one.", min=1, max=WORKERS_MAX)]


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer's signature of a callback
    if wanted:
        tell(f"tollkeeper {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """A payment-gated API gateway and a payment hub for the x402 protocol."""
    del version  # its callback has acted


def _serve(role: Role, config: Path | None, **given: str | int | None) -> None:
    overrides = {name: str(value) for name, value in given.items() if value is not None}
    serve(role, None if config is None else str(config), overrides)


@app.command("serve")
def serve_command(config: Config = None, host: Host = None, port: Port = None, workers: Workers = None) -> None:
    """Run gateway and hub on one port: the gateway at /, the hub under /hub.

    Example: tollkeeper serve --config /etc/tollkeeper/tollkeeper.toml
    """
    _serve(Role.SERVE, config, host=host, port=port, workers=workers)


@app.command("gateway")
def gateway_command(config: Config = None, host: Host = None, port: Port = None, workers: Workers = None) -> None:
    """Run the gateway alone, with a hub or another x402 facilitator at hub_url.

    Example: TOLLKEEPER_HUB_URL=https://hub.example.org tollkeeper gateway
    """
    _serve(Role.GATEWAY, config, host=host, port=port, workers=workers)


@app.command("hub")
def hub_command(config: Config = None, host: Host = None, port: Port = None, workers: Workers = None) -> None:
    """Run the hub alone: login, history, supported, verify, settle.

    Example: tollkeeper hub --port 8404
    """
    _serve(Role.HUB, config, host=host, port=port, workers=workers)


@app.command("init")
def init_command(  # noqa: PLR0913 - each is an option
    *,
    directory: Annotated[Path, typer.Option("--dir", help="Where to write; made where it is not there.")] = Path(),
    role: ForRole = Role.SERVE,
    network: Annotated[str, typer.Option(help=f"One of {', '.join(NETWORKS)}.")] = "base-sepolia",
    rpc_url: Annotated[str | None, typer.Option(help="A JSON-RPC node of that network; can be written later.")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(help="The port to listen on.", min=1, max=65535)] = None,
    public_url: Annotated[str | None, typer.Option(help="The URL by which the world reaches this part.")] = None,
    payment_address: Annotated[str | None, typer.Option(help="Who is paid where a gate names nobody.")] = None,
    hub_url: Annotated[str | None, typer.Option(help="Of a gateway alone: its hub, or another facilitator.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where databases are; else beside, and of /etc in /var/lib/tollkeeper.")
    ] = None,
) -> None:
    """Write a commented configuration and fresh keys that `tollkeeper serve` then starts with.

    Example: tollkeeper init --dir /etc/tollkeeper --rpc-url https://node.example.org
    """
    from tollkeeper.core.families import FAMILIES
    from tollkeeper.serving.config.init import InitError, initialise, parse_choices

    try:
        choices = parse_choices(
            network, rpc_url, host, port, public_url, payment_address, role=role, hub_url=hub_url, data_dir=data_dir
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        made = initialise(directory, choices)
    except InitError as error:
        refuse(str(error), code=EXIT_FAILED)
    family, steps = FAMILIES[choices.network.family], []
    if made.payers:
        payers = " and ".join(made.payers)
        steps.append(f"fund {payers} with {family.fee_money} on {choices.network.name}: {family.fee_use}")
    if rpc_url is None and role is not Role.GATEWAY:
        steps.append(f"write the URL of a {choices.network.name} node into {made.config_path}, at rpc_url")
    if hub_url is None and role is Role.GATEWAY:
        steps.append(f"write the URL of the hub into {made.config_path}, at hub_url")
    if role is not Role.SERVE:
        steps.append(f"write the other part's public URL into {made.config_path}, at trusted_issuers")
    named = "" if role is Role.SERVE else f" --for {role.value}"
    steps += [f"{typed_command()} {step} --config {made.config_path}" for step in (f"config check{named}", role.value)]
    tell(f"{made.config_path} and its keys are written. Keep a copy of the keys in a safe place.")
    tell(f"Data will be in {made.data_dir}.\n\nNext:")
    for number, step in enumerate(steps, start=1):
        tell(f"  {number}. {step}")


@config_app.command("check")
def config_check_command(
    *,
    config: Config = None,
    role: ForRole = Role.SERVE,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no node and no bucket.")] = False,
) -> None:
    """Print the effective configuration without its secrets, everything that is wrong with it, what was not checked.

    Asks nodes which chain they are of, and for how many settlements the hub's accounts have money.

    Example: tollkeeper config check --for gateway
    """
    import io

    from tollkeeper.core.configuration import LogFormat, LogLevel
    from tollkeeper.logs import configure_logs
    from tollkeeper.serving.config.check import check_configuration

    configure_logs(LogLevel.ERROR, LogFormat.TEXT, io.StringIO())  # what asking makes logged is told as findings
    report = check_configuration(role, config, asks=not offline)
    width = max(len(name) for name, _ in report.values)
    for name, value in report.values:
        tell(f"{name:<{width}}  {value}")
    tell()
    for finding in report.warnings:
        say(f"warning: {finding}", typer.colors.YELLOW, sys.stdout)
    for finding in report.errors:
        say(f"error: {finding}", typer.colors.RED, sys.stdout)
    for question in report.unchecked:
        tell(f"not checked: {question}")
    if report.errors:
        sys.exit(EXIT_CONFIGURATION)
    tell(f"`tollkeeper {role.value}` can start with this.")


@contracts_app.callback()
def contracts_options() -> None:
    """Contracts of ours on a chain."""


@contracts_app.command("deploy")
def deploy_command(
    *,
    network: Annotated[str, typer.Option(help="The network, which the configuration must enable.")],
    key_file: Annotated[
        Path | None, typer.Option(help="The private key that pays, in a file. Never one that the hub settles with.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Do without the deterministic deployer.")] = False,
    config: Config = None,
    role: ForRole = Role.SERVE,
) -> None:
    """Put the contract on a chain that lets several settlements share one transaction, and print its address.

    Example: tollkeeper contracts deploy --network base-sepolia --key-file deploy.key
    """
    import asyncio

    from tollkeeper.serving.deploying import DeploymentFailed, deploy

    settings = load_settings(role, config)
    try:
        lines = asyncio.run(deploy(settings, network, key_file, is_plain=plain))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    except DeploymentFailed as error:
        refuse(str(error), code=EXIT_FAILED)
    for line in lines:
        tell(line)


@keys_app.command("list")
def list_keys_command(config: Config = None, role: ForRole = Role.SERVE) -> None:
    """Print each encryption key's id, how many stored values it sealed, and retired ones whose tokens are good.

    Example: tollkeeper keys list --for gateway
    """
    from tollkeeper.serving.admin.rotation import list_keys

    for line in list_keys(load_settings(role, config)):
        tell(line)


@keys_app.command("rotate")
def rotate_command(config: Config = None, role: ForRole = Role.SERVE) -> None:
    """Put a new encryption key first into the key file. A restart of the server then uses it.

    Example: tollkeeper keys rotate --config /etc/tollkeeper/tollkeeper.toml
    """
    from tollkeeper.serving.admin.rotation import rotate

    _change_key_file(lambda: rotate(load_settings(role, config)))


KeyId = Annotated[str, typer.Argument(help="The id of a key, as `keys list` shows it.")]


@keys_app.command("retire")
def retire_command(key: KeyId, config: Config = None, role: ForRole = Role.SERVE) -> None:
    """Take a former key out of the key file, once nothing that is stored is sealed under it.

    Example: tollkeeper keys retire e-1f2e3d4c
    """
    from tollkeeper.serving.admin.rotation import retire

    _change_key_file(lambda: retire(load_settings(role, config), key))


def _change_key_file(change: Callable[[], list[str]]) -> None:
    try:
        lines = change()
    except OSError as error:
        refuse(f"the key file cannot be changed ({error}): nothing is lost, run it again when that is mended")
    for line in lines:
        tell(line)


@keys_app.command("revoke")
def revoke_command(key: KeyId, config: Config = None, role: ForRole = Role.SERVE) -> None:
    """End the credit tokens and links that a retired key made, because it leaked. The running server does it.

    Example: tollkeeper keys revoke e-1f2e3d4c
    """
    import asyncio

    from tollkeeper.serving.admin.rotation import revoke

    _change_key_file(lambda: asyncio.run(revoke(load_settings(role, config), key)))


@payments_app.command("honour")
def honour_command(
    transaction: Annotated[str, typer.Argument(help="The hash of the transaction that carried the payment out.")],
    gate: Annotated[str, typer.Option(help="The slug of the PayGate that it bought.")],
    nonce: Annotated[str | None, typer.Option(help="The authorization's nonce, where there are several.")] = None,
    config: Config = None,
    role: ForRole = Role.SERVE,
) -> None:
    """Grant, once, what a payment bought that somebody else carried out; the chain must show it. The server does it.

    Run again for the same transaction, it grants nothing more and prints the same credit token.

    Example: tollkeeper payments honour 0x5c50...e8 --gate weather
    """
    import asyncio

    from tollkeeper.serving.admin.socket import give_order

    if role is Role.HUB:
        raise typer.BadParameter("--for: a hub keeps no purchases, its gateway does")
    order = {"order": "honour", "gate": gate, "transaction": transaction, "nonce": nonce}
    answer = asyncio.run(give_order(load_settings(role, config).database_url, order))
    if "error" in answer:
        refuse(answer["error"], code=EXIT_FAILED)
    done = answer["done"]
    if done["isRepeated"]:
        tell("This payment was honoured before, and nothing was granted now. What is left:")
    tell(f"{done['credits']} credits of {done['slug']} for {done['payer']}, who paid {done['paid']} USDC")
    tell(f"purchase      {done['purchaseId']}")
    tell(f"credit token  {done['creditToken']}")
    tell("Hand the credit token to the buyer: X-Credit-Token on each call. The payment header does not count.")


@app.command("sandbox")
def sandbox_command(
    *,
    port: Annotated[int, typer.Option(help="The gateway's port; 0 takes a free one.", min=0, max=65535)] = 8402,
    data_dir: Annotated[Path | None, typer.Option(help="Where the database is; temporary unless given.")] = None,
    engine: Annotated[str, typer.Option(help="The embedded chain's engine: auto, pyrevm or pyevm.")] = "auto",
    rpc_url: Annotated[
        str | None, typer.Option("--rpc-url", help="Use this node, such as an anvil of chain id 84532, instead.")
    ] = None,
    relayer_key: Annotated[
        str | None, typer.Option(help="The key that pays gas on that node, unless the public test wallet does.")
    ] = None,
    print_json: Annotated[bool, typer.Option("--print-json", help="Print one line of JSON when ready.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
) -> None:
    """Run gateway, hub, two chains with play USDC, funded wallets and a demo target, all on this machine.

    Example: tollkeeper sandbox
    """
    _require_embedded_chains(engine)
    from tollkeeper.sandbox.running import parse_options, run_sandbox

    try:
        chosen = parse_options(port, data_dir, engine, rpc_url, relayer_key, log_level)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    run_sandbox(chosen, print_json=print_json)


@app.command("demo")
def demo_command(
    *,
    client: Annotated[
        str, typer.Option(help="Who buys: built-in, or official (PyPI x402 1.0.0, npm x402-fetch).")
    ] = "built-in",
    engine: Annotated[str, typer.Option(help="The embedded chain's engine: auto, pyrevm or pyevm.")] = "auto",
) -> None:
    """Play whole purchases on embedded chains, and check every step of them.

    Example: tollkeeper demo
    """
    _require_embedded_chains(engine)
    from tollkeeper.sandbox.demo.evm import run_demo

    try:
        done = run_demo(client, engine)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    sys.exit(0 if done else EXIT_FAILED)


def _require_embedded_chains(engine: str) -> None:
    """End the command where their libraries are not installed, as after a plain `pip install`."""
    from tollkeeper.sandbox.libraries import missing_libraries

    if missing := missing_libraries(engine):
        refuse(missing, code=EXIT_FAILED)
