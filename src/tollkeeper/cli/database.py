"""Commands on a part's database: its schema, its soundness, copies of it."""
# ruff: noqa: PLC0415 - a command imports what it runs, so that the others start at once

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tollkeeper.cli.options import Config, ForRole
from tollkeeper.cli.output import EXIT_FAILED, refuse, say, tell
from tollkeeper.settings.loading import load_settings
from tollkeeper.settings.model import Role
from tollkeeper.settings.sources import typed_command

if TYPE_CHECKING:
    from tollkeeper.settings.model import Settings

database_app = typer.Typer(help="The database.", no_args_is_help=True)


@database_app.command("migrate")
def migrate_command(config: Config = None, role: ForRole = Role.SERVE) -> None:
    """Bring the database's schema up to date, as a start would.

    Example: tollkeeper db migrate --for hub
    """
    import asyncio

    from tollkeeper.storage.urls import open_database, pending

    settings = load_settings(role, config)
    missing = pending(settings.database_url)
    asyncio.run(open_database(settings.database_url).close())
    for migration in missing:
        tell(f"applied {migration.version:04}_{migration.name}")
    tell("the schema is up to date")


@database_app.command("check")
def check_command(
    *,
    config: Config = None,
    role: ForRole = Role.SERVE,
    chain: Annotated[
        bool | None,
        typer.Option("--chain/--no-chain", help="Compare with the chain too; unless said, where a node is set."),
    ] = None,
    since_block: Annotated[
        int | None, typer.Option(help="The first block to compare; else the first that the books name.", min=0)
    ] = None,
    network: Annotated[str | None, typer.Option(help="Compare this network with its chain, and no other.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Read every call that was not folded, too, and not only their sums by day.")
    ] = False,
) -> None:
    """Compare the books with themselves and the chain, and list every difference.

    Changes nothing; a server may be running.

    Example: tollkeeper db check --since-block 21000000
    """
    import asyncio

    from tollkeeper.chains.replies import RpcUnavailable
    from tollkeeper.serving.books.inspection import inspect_books
    from tollkeeper.serving.books.reconciliation import compare_with_chain, not_compared
    from tollkeeper.storage.books.invariants import Extent

    settings = load_settings(role, config)
    if network is not None and network not in settings.networks:
        raise typer.BadParameter(f"{network} is no network of this configuration")
    differences, left, problem = inspect_books(settings, Extent(with_journal=everything)), dict[str, int](), ""
    if chain is None:
        chain = any(one.rpc_urls for one in settings.networks.values())
    if chain:
        networks = settings.networks if network is None else {network: settings.networks[network]}
        try:
            differences += asyncio.run(compare_with_chain(replace(settings, networks=networks), since_block))
        except RpcUnavailable as error:
            problem = f"the chain cannot be compared: {error}"
        left = not_compared(settings) if network is None else {}
    for difference in differences:
        say(str(difference), typer.colors.RED, sys.stdout)
    if differences:
        tell(f"{len(differences)} difference{'s' if len(differences) > 1 else ''}")
    if problem:
        refuse(problem, code=EXIT_FAILED)
    for name, count in left.items():
        say(f"not compared with the chain: {name}, {count} payments", typer.colors.YELLOW, sys.stdout)
    if differences:
        sys.exit(EXIT_FAILED)
    tell(("books and chain agree" if chain else "the books agree") + (" where they were compared" if left else ""))


@database_app.command("backup")
def backup_command(
    to: Annotated[Path, typer.Argument(help="The file to write; it must not be there yet.")],
    config: Config = None,
    role: ForRole = Role.SERVE,
) -> None:
    """Copy the database into one file, one consistent state, also beside a running server.

    Example: tollkeeper backup /backup/tollkeeper-2026-11-28.db
    """
    from tollkeeper.storage.urls import back_up

    size_bytes = back_up(load_settings(role, config).database_url, to)
    tell(f"{to} holds the database, {size_bytes:,} bytes. Keep it, and the keys at another place")


@database_app.command("restore")
def restore_command(
    copy: Annotated[Path, typer.Argument(help="A file that `backup` wrote.")],
    config: Config = None,
    role: ForRole = Role.SERVE,
) -> None:
    """Make a backup the database. What was there before is kept aside; a server that runs is a refusal.

    PostgreSQL's database must be an empty one.

    Example: tollkeeper restore /backup/tollkeeper-2026-11-28.db
    """
    from tollkeeper.storage.urls import put_back

    settings = load_settings(role, config)
    aside = put_back(settings.database_url, copy)
    tell(f"{copy} is the database now" + ("" if aside is None else f", and what was there is in {aside}"))
    named = "" if role is Role.SERVE else f" --for {role.value}"
    where = "" if settings.config_path is None else f" --config {settings.config_path}"
    tell(f"It forgets what happened since. Before you start: {typed_command()} db check --chain{named}{where}")


@database_app.command("copy")
def copy_command(
    to: Annotated[
        str, typer.Argument(help="URL of an empty database: postgresql://... The password may be PGPASSWORD.")
    ],
    config: Config = None,
    role: ForRole = Role.SERVE,
    files: Annotated[
        str | None, typer.Option(help="Copy the sold files there first: s3://bucket/prefix, or a directory.")
    ] = None,
) -> None:
    """Copy SQLite's database to PostgreSQL, each table compared by a digest. Stop the program first.

    What is cut off leaves nothing in the database, and is begun again. What was there before stays as it is.

    Example: tollkeeper db copy postgresql://tollkeeper@db.internal/tollkeeper
    """
    from tollkeeper.storage.urls import move, shown_url

    settings = load_settings(role, config)
    if files is not None:
        _copy_files(settings, files)
    count = move(settings.database_url, to)
    also = "" if files is None else f" and files to {files}"
    tell(f"{shown_url(to)} holds all {count:,} rows, each table compared. Now set database_url to it{also}, and start")


def _copy_files(settings: Settings, to: str) -> None:
    import asyncio

    from tollkeeper.core.configuration import Bucket, parse_files
    from tollkeeper.serving.config.file_stores import file_store
    from tollkeeper.storage.files.copies import copy_contents
    from tollkeeper.storage.files.store import FileStoreError
    from tollkeeper.storage.gateway.file_rows import every_file
    from tollkeeper.storage.urls import open_snapshot

    try:
        place = parse_files(to)
    except ValueError as error:
        raise typer.BadParameter(f"--files: {error}") from error
    there = file_store(replace(settings.files, place=place if isinstance(place, Bucket) else Path(place)))
    with open_snapshot(settings.database_url) as snapshot:
        kept = every_file(snapshot)
    try:
        missing = asyncio.run(copy_contents(kept, file_store(settings.files), there))
    except FileStoreError as error:
        refuse(
            f"files cannot be copied to {to}: {error}: no database was copied; run the command again", code=EXIT_FAILED
        )
    for file in missing:
        say(f"not in {settings.files.place}: {file.id} ({file.name})", typer.colors.YELLOW, sys.stdout)
    tell(f"{to} has {len(kept) - len(missing):,} of {len(kept):,} files, each compared")
