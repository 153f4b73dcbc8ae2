"""The owner's dashboard, `/app`: what its wallet may see and do, as pages.

Promises:

- A page holds no rule of its own: it calls the operations that the API calls (`gateway.management`), and shows what
  they refuse in their words.
- Nobody sees a page but the `/login` without a session (`login`), which a cookie of this host alone carries.
- Nothing is changed but by a form of this origin (`visit` checks Origin and Fetch Metadata).
- Nothing that a gate's owner or target wrote runs here: text is escaped, and no page lets a script in but ours.

Begin with `pages`, the list of every page, and `routes`, which answers them; `visit` is what all of them know of their
visitor. Then a page each: `overview`, `gate_list`, `gate`, `gate_editing` with its form, `requests`, `payments`,
`account`.
"""
