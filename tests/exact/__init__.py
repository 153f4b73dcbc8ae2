"""Units of four programs at once on one PostgreSQL are as exact as one writer's (`make exact`; short in `make test`).

Each property is shown to need its remedy: the same test with the locks gone (`unlocked`) finds that it does not hold.
"""
