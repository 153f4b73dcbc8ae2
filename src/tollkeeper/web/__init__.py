"""Pages for people: what they show is the gateway's, and so is every rule; nothing here decides about a payment.

Imported late: a process that no browser asks holds neither templates nor their engine.
"""
