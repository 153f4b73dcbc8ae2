"""Stores of the contents of file PayGates (contract 4.8; security A-43, A-44).

Promises:
- An object is there under its id only when it is whole and durable. So a crash leaves nothing to be sold by halves.
- A content is never held in memory, and a store that does not answer costs no buyer a credit.

An object is unfinished, whole, or an orphan that no row names; `gateway.files` sweeps what a crash left. Whether it is
sold is `storage.gateway.file_rows`' to say.

Begin with `store`: the interface, and the store in a local directory. `s3` is the same in a bucket.
"""
