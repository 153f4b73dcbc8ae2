"""HTTP as our listeners take it from callers and targets.

Promises:
- A head is judged, noted and copied in one pass; two readers never disagree about where a message ends (`heads`).
- A header crosses the gateway by `forwarding`'s rules alone: what is hop by hop, ours or the owner's does not.
- A target is a public address unless the operator allows others (`target_addresses`).
- A client's address is what trusted proxies wrote, and no more (`client_addresses`).

Begin with `heads`, then `forwarding`. `rate_limits` and `timeouts` bound what callers may do; `signatures` is how our
parts sign to each other. The sockets are in `edge`.
"""
