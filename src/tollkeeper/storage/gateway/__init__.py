"""Rows of the gateway beside the ledger: gates, their secrets, files, statistics (contract 2, 3, 4.7, 4.8).

Promises:
- Who changes a gate is judged in the commit of the change (`paygates`), and a create under its key is made once.
- What is sealed is opened by its own row and column only, and may move under another key while it is used (`reseals`).
- A file's content is sold only once a row names it, and cut only once no link to it is good.

A gate is there or deleted for ever. A file's content is being written, sold, sold no more, then cut (`file_rows`).

Begin with `paygates`. `secrets` and `creations` are units that its commits contain; `owner_lists` and `statistics` are
what owners read, and `settled_assets` remembers what a facilitator could settle.
"""
