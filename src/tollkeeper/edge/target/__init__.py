"""The way to targets: addresses, connections, an exchange at a time (contract 3.4, 4.5, 4.7; security A-41, A-42).

Promises:
- One address that a target may not be at refuses the host, and a name that changes meanwhile changes nothing.
- No redirect is followed. What was sent is sent again only where HTTP allows it and nothing came back.
- An answer's head is told once its body is known to fit, but for streams. No tenant has more than its share of
  connections, lookups, memory and disk.

A connection is being opened, in use, kept, or closed (`pool`); one that broke amid an exchange is never kept.

Begin with `forwarder`, then `relay` (a whole answer) or `stream` (as it comes). `addresses` and `dns` say where the
target is, `pool`, `connection` and `tls` reach it, `exchange` is what they tell who drives them, `spool` holds bodies.
"""
