"""Parts of both sides of the edge, which know no connection and no payment.

They promise little memory and little work for each call: chunks of two bytes are kept as bytes and not as objects, and
one timer serves all deadlines.

None of them has a state that outlives its call, but `deadlines`, which has the one timer.

Begin with `whole_messages`, which reads what came in one piece. `body_chunks` holds parts of a body that wait,
`deadlines` ends what takes too long, `turns` lets others go first, and `nothing_sent` is the refusal of a call whose
target was sent nothing.
"""
