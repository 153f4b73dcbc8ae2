"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tollkeeper.settings import FILE_NAME, Role

Config = Annotated[
    Path | None,
    typer.Option("--config", help=f"The configuration file; else TOLLKEEPER_CONFIG, else {FILE_NAME} here."),
]
ForRole = Annotated[Role, typer.Option("--for", help="Whose: of serve, of gateway or of hub.")]
