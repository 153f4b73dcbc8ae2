"""Orders of an operator's commands to the running server: the one way to write while it serves.

The server has its database for itself, so a command that must write hands an order over a socket beside the file
(`socket`). `commands` carries each order out. If no server runs, the command says so and does nothing. Commands that
only read (`db check`, `keys list`) look at the file by themselves, and those that change key files need no server.

Begin with `commands`.
"""
