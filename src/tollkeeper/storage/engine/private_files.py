"""Directories and files that are their owner's alone, whatever the umask: 0700 and 0600."""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def make_private_directory(path: Path) -> None:
    """Make the directory, and those above it that are not there. One that is there keeps its mode. Raises: OSError."""
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(0o700)


def open_private_file(path: Path) -> IO[bytes]:
    """Make a file that is not there yet, to be written without a buffer. Raises: OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "wb", buffering=0)


def sync(path: Path) -> None:
    """Flush a file, or what a directory has of entries, to the disk. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
