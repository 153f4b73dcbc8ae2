"""The gateway's facilitator: what it settles, and how it is asked."""
