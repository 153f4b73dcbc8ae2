"""Orders of an operator's commands to the running server: the one way to write while it serves.

Promises:
- The server has its database for itself: a command that must write hands an order over a socket beside the file, which
  is as private as the file.
- If no server runs, the command says so and does nothing.
- Commands that only read (`db check`, `keys list`) look at the file by themselves; those that change key files need no
  server.

An order has no states: it is carried out or refused, and may be given again. A key's rotation has three steps
(`rotation`).

Begin with `commands`, which carries each order out. `socket` is how an order is given and answered.
"""
