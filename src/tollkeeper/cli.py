"""Every command: reads its options, calls what carries it out, prints, and turns refusals into exit codes.

Exit codes: 0 done; 1 it failed; 2 the command line was wrong; 3 configuration, keys or database cannot be used.
What this module does not do: compose or run anything itself (`tollkeeper.serving` and `tollkeeper.sandbox` do).
"""
# ruff: noqa: PLC0415 - a command imports what it runs, so that the others start at once

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, TextIO

import typer

from tollkeeper import __version__
from tollkeeper.settings import FILE_NAME, Role, SettingsError, load_settings, wants_colours

if TYPE_CHECKING:
    from tollkeeper.core.wallet_keys import WalletKey

EXIT_FAILED: Final = 1
EXIT_CONFIGURATION: Final = 3

app = typer.Typer(
    name="tollkeeper",
    help="A payment-gated API gateway and a payment hub for the x402 protocol.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
database_app = typer.Typer(help="The database.", no_args_is_help=True)
payments_app = typer.Typer(help="Payments.", no_args_is_help=True)
config_app = typer.Typer(help="The configuration.", no_args_is_help=True)
contracts_app = typer.Typer(help="Contracts of ours on a chain.", no_args_is_help=True)
keys_app = typer.Typer(help="The keys that encrypt what is stored.", no_args_is_help=True)
paygate_app = typer.Typer(help="PayGates, at a running gateway.", no_args_is_help=True)
app.add_typer(database_app, name="db")
app.add_typer(paygate_app, name="paygate")
app.add_typer(config_app, name="config")
app.add_typer(keys_app, name="keys")
app.add_typer(payments_app, name="payments")
app.add_typer(contracts_app, name="contracts")

Config = Annotated[
    Path | None,
    typer.Option("--config", help=f"The configuration file; else TOLLKEEPER_CONFIG, else {FILE_NAME} here."),
]
Host = Annotated[str | None, typer.Option(help="The address to listen on.")]
Port = Annotated[int | None, typer.Option(help="The port to listen on.", min=0, max=65535)]
Workers = Annotated[int | None, typer.Option(help="How many processes serve calls; 1 unless given.", min=1, max=64)]
KeyFile = Annotated[Path | None, typer.Option(help="The private key of a wallet, of either chain family, in a file.")]
ForRole = Annotated[Role, typer.Option("--for", help="Whose: of serve, of gateway or of hub.")]


def main() -> None:
    """The command's entry."""
    from tollkeeper.serving import StartError
    from tollkeeper.storage import StorageError

    try:
        app()
    except SettingsError as error:
        _refuse(*(str(finding) for finding in error.findings))
    except StorageError as error:
        _refuse(error.message)
    except StartError as error:
        _refuse(str(error))


def _refuse(*problems: str, code: int = EXIT_CONFIGURATION) -> NoReturn:
    for problem in problems:
        _print(problem, typer.colors.RED, sys.stderr)
    sys.exit(code)


def _print(text: str, colour: str, stream: TextIO) -> None:
    typer.secho(text, file=stream, fg=colour if wants_colours(stream) else None)


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer's signature of a callback
    if wanted:
        typer.echo(f"tollkeeper {__version__}")
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
    settings = load_settings(role, config, overrides=overrides)
    from tollkeeper.serving.process import serve

    serve(settings)


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
def hub_command(config: Config = None, host: Host = None, port: Port = None) -> None:
    """Run the hub alone: login, history, supported, verify, settle.

    Example: tollkeeper hub --port 8404
    """
    _serve(Role.HUB, config, host=host, port=port)


@app.command("init")
def init_command(
    *,
    directory: Annotated[Path, typer.Option("--dir", help="Where to write; made where it is not there.")] = Path(),
    network: Annotated[str, typer.Option(help="base-sepolia, base, solana-devnet or solana-mainnet.")] = "base-sepolia",
    rpc_url: Annotated[str | None, typer.Option(help="A JSON-RPC node of that network; can be written later.")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.", min=1, max=65535)] = 8402,
    public_url: Annotated[str | None, typer.Option(help="The URL by which the world reaches the gateway.")] = None,
    payment_address: Annotated[str | None, typer.Option(help="Who is paid where a gate names nobody.")] = None,
) -> None:
    """Write a commented configuration and fresh keys that `tollkeeper serve` then starts with.

    Example: tollkeeper init --dir /etc/tollkeeper --rpc-url https://node.example.org
    """
    from tollkeeper.core.networks import Family
    from tollkeeper.serving.initialise import InitError, initialise, parse_choices

    try:
        choices = parse_choices(network, rpc_url, host, port, public_url, payment_address)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        made = initialise(directory, choices)
    except InitError as error:
        _refuse(str(error), code=EXIT_FAILED)
    if choices.network.family is Family.SOLANA:
        payers, money, cost = " and ".join(made.fee_payers), "a little SOL", "they pay the fees of settlements"
    else:
        payers, money, cost = made.relayer, "a little ether", "it pays the gas of settlements"
    steps = [f"fund {payers} with {money} on {choices.network.name}: {cost}"]
    if rpc_url is None:
        steps.append(f"write the URL of a {choices.network.name} node into {made.config_path}, at rpc_url")
    steps += [f"tollkeeper config check --config {made.config_path}", f"tollkeeper serve --config {made.config_path}"]
    typer.echo(f"{made.config_path} and its keys are written. Keep a copy of the keys in a safe place.\n\nNext:")
    for number, step in enumerate(steps, start=1):
        typer.echo(f"  {number}. {step}")


@config_app.command("check")
def config_check_command(config: Config = None, role: ForRole = Role.SERVE) -> None:
    """Print the effective configuration without its secrets, and everything that is wrong with it.

    Example: tollkeeper config check --for gateway
    """
    from tollkeeper.serving.checking import check_configuration

    report = check_configuration(role, config)
    width = max(len(name) for name, _ in report.values)
    for name, value in report.values:
        typer.echo(f"{name:<{width}}  {value}")
    typer.echo()
    for finding in report.warnings:
        _print(f"warning: {finding}", typer.colors.YELLOW, sys.stdout)
    for finding in report.errors:
        _print(f"error: {finding}", typer.colors.RED, sys.stdout)
    if report.errors:
        sys.exit(EXIT_CONFIGURATION)
    typer.echo(f"`tollkeeper {role.value}` can start with this.")


@database_app.command("migrate")
def migrate_command(config: Config = None, role: ForRole = Role.SERVE) -> None:
    """Bring the database's schema up to date, as a start would.

    Example: tollkeeper db migrate --for hub
    """
    import asyncio

    from tollkeeper.serving.composition import open_own_database
    from tollkeeper.storage import pending

    settings = load_settings(role, config)
    missing = pending(settings.database_url)
    asyncio.run(open_own_database(settings).close())
    for migration in missing:
        typer.echo(f"applied {migration.version:04}_{migration.name}")
    typer.echo("the schema is up to date")


@database_app.command("check")
def check_command(
    *,
    config: Config = None,
    role: ForRole = Role.SERVE,
    chain: Annotated[bool, typer.Option("--chain", help="Compare the books with the chain too.")] = False,
    since_block: Annotated[
        int | None, typer.Option(help="The first block to compare; else the first that the books name.", min=0)
    ] = None,
) -> None:
    """Compare the books with themselves and list every difference. Changes nothing; a server may be running.

    Example: tollkeeper db check --chain
    """
    import asyncio

    from tollkeeper.chains.rpc import RpcUnavailable
    from tollkeeper.serving.inspection import inspect_books
    from tollkeeper.serving.reconciling import compare_with_chain

    settings = load_settings(role, config)
    differences = inspect_books(settings)
    if chain:
        try:
            differences += asyncio.run(compare_with_chain(settings, since_block))
        except RpcUnavailable as error:
            _refuse(f"the chain cannot be compared: {error}", code=EXIT_FAILED)
    for difference in differences:
        _print(str(difference), typer.colors.RED, sys.stdout)
    if differences:
        typer.echo(f"{len(differences)} differences")
        sys.exit(EXIT_FAILED)
    typer.echo("books and chain agree" if chain else "the books agree")


@contracts_app.callback()
def contracts_options() -> None:
    """Contracts of ours on a chain."""


@contracts_app.command("deploy")
def deploy_command(
    *,
    network: Annotated[str, typer.Option(help="The network, which the configuration must enable.")],
    key_file: Annotated[
        Path | None, typer.Option(help="The key that pays, in a file; else the hub's own, while the hub is stopped.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Do without the deterministic deployer.")] = False,
    config: Config = None,
    role: ForRole = Role.SERVE,
) -> None:
    """Put the contract on a chain that lets several settlements share one transaction, and print its address.

    Example: tollkeeper contracts deploy --network base-sepolia
    """
    import asyncio

    from tollkeeper.serving.deploying import DeploymentFailed, deploy

    settings = load_settings(role, config)
    try:
        lines = asyncio.run(deploy(settings, network, key_file, is_plain=plain))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    except DeploymentFailed as error:
        _refuse(str(error), code=EXIT_FAILED)
    for line in lines:
        typer.echo(line)


@keys_app.command("list")
def list_keys_command(config: Config = None, role: ForRole = Role.SERVE) -> None:
    """Print each encryption key's id, and how many stored values it sealed. A server may be running.

    Example: tollkeeper keys list --for gateway
    """
    from tollkeeper.serving.rotating import list_keys

    for line in list_keys(load_settings(role, config)):
        typer.echo(line)


@keys_app.command("rotate")
def rotate_command(
    *,
    config: Config = None,
    role: ForRole = Role.SERVE,
    revoke_tokens: Annotated[
        bool, typer.Option("--revoke-tokens", help="A former key leaked: its credit tokens and links end.")
    ] = False,
) -> None:
    """Make a new encryption key, seal everything stored under it, and retire the former one. Servers go on serving.

    Where it was cut off, run it again: it goes on.

    Example: tollkeeper keys rotate --config /etc/tollkeeper/tollkeeper.toml
    """
    import asyncio

    from tollkeeper.serving.rotating import rotate

    settings = load_settings(role, config)
    try:
        asyncio.run(rotate(settings, typer.echo, revokes_tokens=revoke_tokens))
    except OSError as error:
        _refuse(f"the rotation stopped ({error}): run it again when that is mended", code=EXIT_FAILED)


@payments_app.command("honour")
def honour_command(
    transaction: Annotated[str, typer.Argument(help="The hash of the transaction that carried the payment out.")],
    gate: Annotated[str, typer.Option(help="The slug of the PayGate that it bought.")],
    nonce: Annotated[str | None, typer.Option(help="The authorization's nonce, where there are several.")] = None,
    config: Config = None,
    role: ForRole = Role.SERVE,
) -> None:
    """Grant, once, what a payment bought that somebody else carried out; the chain must show it.

    Example: tollkeeper payments honour 0x5c50...e8 --gate weather
    """
    import asyncio

    from tollkeeper.serving.hands import honour_payment

    order = {"gate": gate, "transaction": transaction, "nonce": nonce}
    answer = asyncio.run(honour_payment(load_settings(role, config), order))
    if "error" in answer:
        _refuse(answer["error"], code=EXIT_FAILED)
    done = answer["done"]
    typer.echo(f"{done['credits']} credits of {done['slug']} for {done['payer']}, who paid {done['paid']} USDC")
    typer.echo(f"purchase      {done['purchaseId']}")
    typer.echo(f"credit token  {done['creditToken']}")
    typer.echo("Hand the credit token to the buyer: X-Credit-Token on each call. The payment header does not count.")


@paygate_app.command("create")
def create_command(  # noqa: PLR0913 - one for each option
    *,
    gateway: Annotated[str, typer.Option(help="The gateway's URL.")] = "http://127.0.0.1:8402",
    price: Annotated[str, typer.Option(help="USDC for one purchase, such as 0.50.")],
    target: Annotated[str | None, typer.Option(help="The URL whose calls are sold.")] = None,
    file: Annotated[Path | None, typer.Option(help="The file that is sold.", exists=True, dir_okay=False)] = None,
    credit_count: Annotated[int, typer.Option("--credits", help="Calls or links for one purchase.", min=1)] = 1,
    title: Annotated[str, typer.Option(help="What buyers read.")] = "",
    network: Annotated[str | None, typer.Option(help="Where it is paid; else the gateway's default network.")] = None,
    payment_address: Annotated[str | None, typer.Option(help="Who is paid, unless the gate's owner is.")] = None,
    key_file: KeyFile = None,
) -> None:
    """Put a price on a URL or on a file, and print the link that buyers call.

    A file needs the wallet of its owner; it is sent while a bar shows how far it has come.

    Example: tollkeeper paygate create --file report.pdf --price 0.50 --key-file wallet.key
    """
    import asyncio

    from tollkeeper.client.owner import make_paygate
    from tollkeeper.client.requests import RefusedError

    if (target is None) == (file is None):
        raise typer.BadParameter("give either --target or --file")
    if file is not None and key_file is None:
        raise typer.BadParameter("a file needs --key-file: it belongs to a wallet")
    chosen = {"network": network, "paymentAddress": payment_address}
    fields = {"price": price, "credits": credit_count, "title": title, **{k: v for k, v in chosen.items() if v}}
    key = None if key_file is None else _read_wallet_key(key_file)
    try:
        made = asyncio.run(make_paygate(gateway.rstrip("/"), key, fields, target or file or ""))
    except (RefusedError, OSError) as error:
        _refuse(str(error), code=EXIT_FAILED)
    typer.echo(made["accessUrl"])
    for warning in made.get("warnings", ()):
        _print(f"warning: {warning['message']}", typer.colors.YELLOW, sys.stderr)
    if "managementToken" in made:
        typer.echo(f"managementToken (shown once): {made['managementToken']}")


def _read_wallet_key(path: Path) -> WalletKey:
    from tollkeeper.core.wallet_keys import parse_wallet_key
    from tollkeeper.settings import read_secret_file

    try:
        return parse_wallet_key(read_secret_file(path))
    except ValueError as error:
        raise typer.BadParameter(f"--key-file: {error}") from None


@app.command("pay")
def pay_command(  # noqa: PLR0913 - one for each option
    *,
    url: Annotated[str, typer.Argument(help="The link of a PayGate, or of any x402 version 1 server.")],
    most: Annotated[str, typer.Option("--max", help="The most that it may cost, in USDC.")] = "0.10",
    key_file: KeyFile = None,
    test_wallet: Annotated[bool, typer.Option("--test-wallet", help="Pay with the sandbox's public wallet.")] = False,
    network: Annotated[str | None, typer.Option(help="Where to pay; else where the link asks first.")] = None,
    rpc_url: Annotated[str | None, typer.Option("--rpc-url", help="A node of the network; on Solana only.")] = None,
    method: Annotated[str, typer.Option(help="GET, POST, ...")] = "GET",
    data: Annotated[str | None, typer.Option(help="The body of the call; @FILE reads one.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="A header, as 'Name: value'; may be repeated.")] = None,
    credit_token: Annotated[str | None, typer.Option(help="Spend credits of this X-Credit-Token first.")] = None,
) -> None:
    """Call a link, pay what it asks in USDC up to a limit, and print the answer.

    The answer's body goes to standard output, everything else to standard error. Exits with 1 unless it was served.

    Example: tollkeeper pay http://127.0.0.1:8402/weather --test-wallet --max 0.05
    """
    import asyncio

    from tollkeeper.client.buying import Wish, pay
    from tollkeeper.client.requests import RefusedError
    from tollkeeper.core.errors import ApiError
    from tollkeeper.core.networks import Family, normalise
    from tollkeeper.core.usdc import parse_usdc
    from tollkeeper.sandbox.wallets import derive_solana_wallets, derive_wallets

    if (key_file is None) != test_wallet:
        raise typer.BadParameter("give either --key-file or --test-wallet")
    try:
        chosen = None if network is None else normalise(network)
        most_micro = parse_usdc(most, field="--max")
        body = None if data is None else Path(data[1:]).read_bytes() if data.startswith("@") else data.encode()
        headers = dict(_header_of(line) for line in header or [])
    except ApiError as error:
        raise typer.BadParameter(error.message) from None
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    if key_file is not None:
        key = _read_wallet_key(key_file)
    elif chosen is not None and chosen.family is Family.SOLANA:
        key = derive_solana_wallets().buyer.key
    else:
        key = derive_wallets().buyer.key
    wish = Wish(url, key, most_micro, chosen, rpc_url, method, body, headers, credit_token)
    try:
        called = asyncio.run(pay(wish, lambda said: typer.echo(said, err=True)))
    except RefusedError as error:
        _refuse(str(error), code=EXIT_FAILED)
    sys.stdout.buffer.write(called.body)
    sys.stdout.flush()
    typer.echo(f"\nstatus {called.status}", err=True)
    for name, value in called.told:
        typer.echo(f"{name} {value}", err=True)
    sys.exit(0 if called.status < 400 else EXIT_FAILED)


def _header_of(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise ValueError("--header: a header is written as 'Name: value'")
    return name.strip(), value.strip()


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
    from tollkeeper.sandbox.demo import run_demo

    try:
        done = run_demo(client, engine)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    sys.exit(0 if done else EXIT_FAILED)


if __name__ == "__main__":
    main()
