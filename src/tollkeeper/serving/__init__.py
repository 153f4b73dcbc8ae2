"""Running the parts: what a process is made of, its listeners, its orderly end (contract 1).

Promises:
- `serve` is gateway and hub in one process; `gateway` and `hub` are the same parts apart. `composition` alone knows
  how they are put together.
- A stop accepts nothing more, finishes accepted requests, then settlements under way, then closes the database.
- SIGHUP changes what can change at once (`reloading`), and names the rest.

States of a process: composed, listening, draining, closed; `run` has them in this order.

Begin with `run`, then `composition`. `http` is in front of the applications, `metrics` beside them, `admin` takes an
operator's orders; `config`, `doctor` and `books` are commands that look and change nothing. `process` is what the
system has of a process, `keys` its key files, `nodes` its way to each network.
"""

from __future__ import annotations


class StartError(Exception):
    """The process cannot start; the message says why, for its user."""
