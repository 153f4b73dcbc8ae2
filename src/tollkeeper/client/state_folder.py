"""The folder in which this machine's user keeps what commands have to remember: `$XDG_STATE_HOME/tollkeeper`.

Everything in it is the user's alone: folders 0700, files 0600. A file is replaced as a whole, so that a reader never
finds half of one.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tollkeeper.client.requests import RefusedError
from tollkeeper.storage.engine.private_files import make_private_directory, open_private_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tollkeeper.core.json_types import JsonObject

_VARIABLE: Final = "XDG_STATE_HOME"
_WITHOUT_IT: Final = Path(".local") / "state"


def state_folder() -> Path:
    """Return the user's folder for Tollkeeper's state, which may not be there yet. Raises: RefusedError."""
    named = os.environ.get(_VARIABLE, "")
    try:
        home = Path(named) if Path(named).is_absolute() else Path.home() / _WITHOUT_IT
    except RuntimeError:
        raise RefusedError(f"this user has no home folder: name one by {_VARIABLE}") from None
    return home / "tollkeeper"


def open_folder(name: str) -> Path:
    """Return a folder below the state folder, made where it is missing. Raises: RefusedError."""
    folder = state_folder() / name
    try:
        make_private_directory(folder.parent)
        make_private_directory(folder)
    except OSError as error:
        raise _unusable(folder, error) from None
    return folder


def read_state(path: Path) -> JsonObject:
    """Return the JSON object in a file; empty where there is none. Raises: RefusedError."""
    try:
        parsed = msgspec.json.decode(path.read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return {}
    except OSError as error:
        raise _unusable(path, error) from None
    return parsed if isinstance(parsed, dict) else {}


def write_state(path: Path, content: object) -> None:
    """Put a JSON value in the place of a file; it is on the disk once this returns. Raises: RefusedError."""
    beside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            with open_private_file(beside) as file:
                file.write(msgspec.json.encode(content))
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            with suppress(FileNotFoundError):
                beside.unlink()
    except OSError as error:
        raise _unusable(path, error) from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder against other commands while the body runs. Raises: RefusedError."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            os.close(descriptor)
            raise
    except OSError as error:
        raise _unusable(folder, error) from None
    try:
        yield
    finally:
        os.close(descriptor)


def _unusable(path: Path, error: OSError) -> RefusedError:
    return RefusedError(f"{path} cannot be used ({error.strerror}): mend it, or name another folder by {_VARIABLE}")
