"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tollkeeper.settings.model import Role
from tollkeeper.settings.sources import FILE_NAME

if TYPE_CHECKING:
    from tollkeeper.core.keys.wallet_keys import WalletKey

Config = Annotated[
    Path | None,
    typer.Option("--config", help=f"The configuration file; else TOLLKEEPER_CONFIG, else {FILE_NAME} here."),
]
ForRole = Annotated[Role, typer.Option("--for", help="Whose: of serve, of gateway or of hub.")]
KeyFile = Annotated[Path | None, typer.Option(help="The private key of a wallet, of either chain family, in a file.")]


def read_wallet_key(path: Path) -> WalletKey:
    """Return the wallet key in a file. Raises: BadParameter."""
    from tollkeeper.core.keys.wallet_keys import parse_wallet_key  # noqa: PLC0415 - most commands sign nothing
    from tollkeeper.settings.sources import read_secret_file  # noqa: PLC0415

    try:
        return parse_wallet_key(read_secret_file(path))
    except ValueError as error:
        raise typer.BadParameter(f"--key-file: {error}") from None


def check_url(name: str, text: str) -> None:
    """Raises: BadParameter for what no request can be sent to."""
    if not text.lower().startswith(("http://", "https://")):
        raise typer.BadParameter(f"{name}: {text} does not begin with http:// or https://")
