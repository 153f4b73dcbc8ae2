"""How long callers may take before their connection is closed (security A-58). The judging is the edge's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that a caller may take. Only `idle_seconds` is a setting: it has to be above that of a proxy in front.

    The others let pass whoever has a slow line, and end what only holds a connection.
    """

    head_seconds: float = 15  # for a head, from the connection's or its own first byte; a slow line takes some 3
    body_seconds: float = 60  # to fall behind with a body, as nginx allows, where it is slower than the next
    body_bytes_per_second: int = 1024  # what the slowest modem sends
    read_seconds: float = 60  # to fall behind with taking an answer, at the same rate
    idle_seconds: int = 75  # between two requests of a connection, as nginx allows
    linger_seconds: float = 2  # to be silent behind an answer that ends a connection on which it was sending
    linger_total_seconds: float = 30  # in all, the same
    sweep_seconds: float = 1  # between two looks at callers
