"""Looks at the books: invariants, and the rows that are compared with the chain (security 5).

Promises:
- Nothing is mended here, and nothing is changed but how far the books were compared.
- What breaks an invariant is listed, sale by sale or settlement by settlement, so that only those are stopped.

An invariant holds, or a list shows what breaks it. A comparison has come so far (a block, a slot), and goes on there.

Begin with `invariants`: I1 to I14 as named SQL. `reconciliation` reads the payments that the books have, for
`serving.books`, which asks the chain.
"""
