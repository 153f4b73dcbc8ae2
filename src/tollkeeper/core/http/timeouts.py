"""How long callers may take before their connection is closed (security A-58). The judging is the edge's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that a caller may take; the first five are settings.

    For a head, from the connection's or its own first byte; to fall behind with a body that comes slower than
    `body_bytes_per_second`; the same with an answer that is taken slower; between two requests of a connection; to be
    silent, and in all, behind an answer that ends a connection on which it was sending. Callers are looked at each
    `sweep_seconds`.
    """

    head_seconds: float = 15
    body_seconds: float = 60
    body_bytes_per_second: int = 1024
    read_seconds: float = 60
    idle_seconds: int = 75
    linger_seconds: float = 2
    linger_total_seconds: float = 30
    sweep_seconds: float = 1
