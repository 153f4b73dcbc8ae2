"""One EVM network behind its nodes.

It promises that the facts of one question are of one block, named by its hash where nodes take one, and that a receipt
counts only if the canonical block lists its transaction.

Begin with `chain`, as `chains.solana.chain`: `open` enables a network or says in `problem` why not. `reader` has the
facts of one node: what a transaction did, by its receipt, and by `authorizations` what became of an authorization.
`payments` reads a range of blocks for the comparison with the books.

`market` says what gas costs, `batcher` which contract carries several settlements, `calls` how a contract's answer is
read, `blocks` and `logs` how blocks are.
"""
