"""The numbers of a process, and the address that tells them.

Promises:
- `/metrics` is at an address of its own, by default on this machine only, and never on the port that the world
  reaches.
- A number is counted where it happens and read when it is asked for; asking changes nothing and waits for no chain.
- No label has a value that strangers choose, so that nobody can make the table grow.

Names and meanings are what the metric itself says in its help text.

Begin with `metrics`, which serves them, too. The counts of answers come from `serving.http.access_log`.
"""
