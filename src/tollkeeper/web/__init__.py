"""Pages for people: a paywall, a dashboard for owners, a page for the operator (contract 11).

Promises:
- What a page shows is the gateway's, by the gateway's own operations, and so is every rule: nothing here decides.
- Words of sellers and callers are text on every page, never markup.
- It is imported late: a process that no browser asks holds neither templates nor their engine.

No page has a state of its own. A visitor is logged in or not (`dashboard.visit`).

Begin with `paywall`, what a buyer sees, or with `dashboard`. `operations` is the operator's page, `home` the front page
and `play` the sandbox's two players. `rendering` loads the templates, `assets` gives scripts and styles; `charts`,
`figures` and `explanations` turn numbers and codes into what is read, `gate_form` a PayGate into a form and back.
"""
