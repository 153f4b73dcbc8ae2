"""Databases and the stores whose verbs run on them (architecture 6).

Promises:
- A store's verb is a unit of work: durable when it returns, all or nothing, and it knows no engine.
- A race ends in one conditional statement, and a crash leaves a row from which the work goes on.
- All SQL stands in `queries`, the schema in `migrations`.

A row's states are its store's: purchases in `ledger`, settlements in `hub`, gates and files in `gateway`.

Begin with `engine.database` (what a unit is), then `ledger.spends` or `hub.claims`. `urls` opens the engine that a URL
names: `sqlite` for one program, `postgresql` for several. `auth` has the rows of logins, which both parts share;
`books` looks for what must hold, and `files` keeps what file PayGates sell.
"""
