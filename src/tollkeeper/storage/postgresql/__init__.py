"""The engine of several programs: one PostgreSQL, spoken to through asyncpg (`pip install tollkeeper[postgresql]`).

Promises:
- A unit decides by what it locked first (`storage.engine.database`), and one that the server broke off is begun anew.
- An exception that is no statement's leaves the outcome unknown, as a lost answer does.
- The SQL is SQLite's, but for the few queries that have other words here (`words`).

A database is looked at, migrated, open, closed (`schema`); a connection is idle in the pool or has one unit.

Begin with `engine`, then `connections`: how a URL is read, and what its errors are. `copy` makes and restores backups.
"""
