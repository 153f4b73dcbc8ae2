"""What is kept of a call on a held credit, for the next one with the same head (performance; contract 4.2, 4.6, 4.7).

What steps 1 to 3 of `access` say of a request whose length is known is a function of its head and of its gate, where no
login had to be asked for and the payer's key signed the payment. So they are taken once, when a credit was spent, and
what they said is kept with the head (`calls.Asked.held`) together with the lines that are the same each time; it holds
as long as the gate is the very same object. Rate limit, spend, body, forwarding and receipt are each call's own. There
are as many as `edge.heads` keeps heads. What this module does not do: decide anything about a payment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tollkeeper.edge.call import LAST_LINES
from tollkeeper.gateway.heads import receipt_end, receipt_start, target_head_end, target_head_start

if TYPE_CHECKING:
    from tollkeeper.core.addresses import TargetUrl
    from tollkeeper.edge.call import InboundCall
    from tollkeeper.edge.forwarding import Way
    from tollkeeper.gateway.buying import Presented
    from tollkeeper.gateway.calls import Asked
    from tollkeeper.gateway.gates import OpenGate
    from tollkeeper.gateway.shared import Shared
    from tollkeeper.storage.purchase_rows import Purchase


@dataclass(slots=True, repr=False)  # the target's head may hold the owner's secrets
class Held:
    """Calls with one head while `opened` is their gate: what they show, and the purchase that it bought.

    `head_start` and `head_end` stand around the request id in the head that the target is sent; `head_end` names the
    client behind `peer`. `receipt_start` and `receipt_end` stand around the credits that are left in the head that the
    caller is sent, up to the request id, and `mark` is what `limiting` knows the proof by.
    """

    shared: Shared
    slug: str
    opened: OpenGate
    target: TargetUrl
    way: Way
    presented: Presented
    purchase: Purchase
    head_start: bytes
    head_end: bytes
    peer: str
    receipt_start: bytes
    receipt_end: bytes
    mark: int
    standing: tuple[int, int]  # see `storage.ledger.Shown`


def held_again(
    shared: Shared, call: InboundCall, asked: Asked, opened: OpenGate, presented: Presented, purchase: Purchase
) -> Held | None:
    """What to keep of a call that just spent a credit; None where its next one has to be asked for more.

    The next one is not asked again whether the gate is there and takes its method, whether it is too long or can be
    forwarded, and what its payment says and who signed it: all of that is its head's and its gate's. So nothing may be
    kept where more counts: a login (`require_auth`), a header that alone is no proof (`takes_header`), a contract
    wallet's signature, which its chain judges; nor where more is written: a signature of its own, a stream, a receipt
    whose transaction is not known, or may yet be another, a length that nobody has said; nor for a file, which is
    handed over.
    """
    gate, target = opened.gate, opened.target
    is_plain = not gate.stream and not opened.wire.secrets
    is_proof = opened.takes_header and not gate.require_auth and presented.tender.is_signed_by_key
    is_settled = purchase.confirmed and purchase.transaction_hash is not None  # else its receipts will say another
    length = call.head.content_length
    if target is None or length is None or not (is_plain and is_proof and is_settled):
        return None
    client = shared.limit.clients.of(call.peer, call.head.headers)
    start, end = target_head_start(call, opened, asked, purchase), target_head_end(call, client, length)
    return Held(
        shared,
        asked.slug,
        opened,
        target,
        shared.forwarder.way(target),
        presented,
        purchase,
        start,
        end,
        call.peer,
        receipt_start(purchase),
        receipt_end(purchase) + LAST_LINES,
        hash(presented.header),
        (gate.id, gate.version),
    )
