"""The engine of one process: an SQLite file with one writing connection (decisions 0004, 0016).

Promises:
- What arrived during a commit is the next one: one sync, then all are answered.
- A failed sync stops every write until all that was committed is in the file again.
- One program has a file, and a file that is damaged, foreign or newer is refused before anything in it could change.

The file is locked, looked at, migrated, open, closed (`file`). Once it is lost, nothing is written (`watch`).

Begin with `engine`. `batches` is its writing thread, `connections` opens what
all of them use. `copy` makes and restores backups.
"""
