"""A database as every store sees it: units of work, their locks, the named SQL and the schema (architecture 6).

Promises:
- A unit is a value that begins a generator, so an engine may begin it again. It never awaits and knows no driver.
- When `Database.run` returns, the unit is durable.
- SQL stands in files, once for all engines, and a schema only grows by numbered migrations.

A database is open, then closed. A program beside others is alive, silent, or ended by another one (`nodes`).

Begin with `database`. It has the one order of locks, and loads the SQL. `migrations` says what the schema
lacks, and `private_files` makes files that are their owner's alone.
"""
