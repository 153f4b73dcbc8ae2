"""The files that hold a key ring, rewritten whole: at every moment each is there as it was or as it is to be.

Owner and mode stay. A key that leaves a ring goes to a file beside it (`.retired`) first: older backups need it.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tollkeeper.core.keys.keyring import key_line, parse_key_ring, without_keys
from tollkeeper.serving import StartError
from tollkeeper.settings.sources import read_secret_file
from tollkeeper.storage.engine.private_files import sync

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from tollkeeper.core.keys.sealing import KeyRing


class KeyFiles:
    """The files of one ring, in the order in which they are read."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = [path.resolve() for path in paths]

    @property
    def retired_path(self) -> Path:
        """File that takes the keys that leave the ring."""
        return self._paths[0].with_name(self._paths[0].name + ".retired")

    @property
    def _revoked_path(self) -> Path:
        return self._paths[0].with_name(self._paths[0].name + ".revoked")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes them until the block ends. Raises: StartError where somebody does."""
        descriptor = os.open(self._paths[0].parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise StartError("another `tollkeeper keys rotate` is at work") from None
        finally:
            os.close(descriptor)

    def ring(self) -> KeyRing:
        """Read the key ring from the files. Raises: ValueError."""
        return parse_key_ring("\n".join(map(read_secret_file, self._paths)))

    def revoked(self) -> frozenset[str]:
        """Return the ids of keys whose tokens were ended: no database that is put back knows. Raises: ValueError."""
        return frozenset(read_secret_file(self._revoked_path).split()) if self._revoked_path.exists() else frozenset()

    def revoke(self, key_id: str) -> None:
        """Keep that the key's tokens were ended. Raises: OSError, ValueError."""
        ids = sorted(self.revoked() | {key_id})
        _rewrite(self._revoked_path, "".join(f"{one}\n" for one in ids), self._paths[0])

    def put_first(self, key_id: str, key: bytes) -> None:
        """The key is the current one from now on. Raises: OSError."""
        _rewrite(self._paths[0], key_line(key_id, key) + read_secret_file(self._paths[0]), self._paths[0])

    def retire(self, key_ids: Collection[str]) -> None:
        """Take these keys out of the ring, into `retired_path`. Raises: OSError, ValueError."""
        ring = self.ring()
        kept = read_secret_file(self.retired_path) if self.retired_path.exists() else ""
        lines = [key_line(name, ring.keys[name]) for name in sorted(key_ids)]
        _rewrite(self.retired_path, kept + "".join(line for line in lines if line not in kept), self._paths[0])
        for path in self._paths:
            text = read_secret_file(path)
            if (left := without_keys(text, key_ids)) != text:
                _rewrite(path, left, path)


def _rewrite(path: Path, text: str, like: Path) -> None:
    """Put `text` in the place of the file, durably, with owner and mode of `like`."""
    there = like.stat()
    new = path.with_name(path.name + ".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), there.st_mode & 0o700)
        if os.geteuid() == 0:
            os.fchown(file.fileno(), there.st_uid, there.st_gid)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync(path.parent)
