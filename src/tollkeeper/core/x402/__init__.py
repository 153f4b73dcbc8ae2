"""x402 on the wire, version by version, and the rules of a payment.

Promises:
- A payment is judged by `verification` alone, whichever version and header it came in; the checks are in one order,
  and the first that fails gives the reason.
- What takes no part in a payment is never a reason to refuse it.
- `fast_json` answers what `core.api.strict_json` and `version1` would, or nothing: it decides no refusal.

Begin with `verification`, then `version1`. `version2` is the same payment in other words. The offers of payments of
both families are in `core.payment_offers`, the 402 in `core.paygates.challenge`.
"""
