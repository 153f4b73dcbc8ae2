"""Owners and buyers on their own machines: ordinary HTTP requests to a gateway, and what a machine keeps of them.

Promises:
- A payment is on the disk before it is sent, and while its outcome is unknown, no other one is signed beside it.
- Nothing is paid beyond the limits of a call and of a day, nor on a 402 that carries a receipt.
- What is kept (logins, payments, tokens) is the user's alone, in files that nobody else can read.

A kept payment is pending, then has a token, then is gone (`kept_purchases`). A kept login is open until `logout`.

Begin with `buying`, the careful buyer of `tollkeeper pay`, or `gateway_account`, an owner's way to the API.

- a payment: `payments`, `paid_answer`, `kept_purchases`, `balances`;
- a login: `logins`;
- both: `requests`, `state_folder`.
"""
