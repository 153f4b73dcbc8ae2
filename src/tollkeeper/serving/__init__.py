"""Running the parts: what a process is made of, its listeners, its orderly end (contract 1)."""

from __future__ import annotations


class StartError(Exception):
    """The process cannot start; the message says why, for its user."""
