"""Many programs on one PostgreSQL, each in a network namespace of its own: needs root and `ip`."""
