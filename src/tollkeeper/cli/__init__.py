"""The commands: what is typed, what is printed, the exit code.

Promises:
- A command prints what happened, whether anything was charged, and what to do next. Its exit code is one of the table
  in `commands`; `pay` has two more.
- What servers sent reaches a terminal without control characters (`output`).
- No rule stands here: `serving`, `sandbox` and `client` carry out what was typed.

Begin with `main`, the entry, then `commands` (of operators) or `owner` (of owners). A command of one subject has a
module: `pay`, `wallets`, `up`, `database`, `doctor`, `completion`.
"""

from tollkeeper.cli.main import main

__all__ = ["main"]
