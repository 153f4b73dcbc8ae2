"""Parts in front of the applications of a process: listener, log, origins, traces.

Promises:
- Every request has one log line, with its id, and none shows a secret or a payment.
- A web page may use `/api` only from our own origin or one that the settings name (`origins`).
- The dashboard's own host, where there is one, answers nothing of a stranger's (`app_host`).
- A listener that stops takes nothing new and ends no request that it accepted (`server`).

Begin with `server`, then `access_log`, which also puts two applications on one port. `traces` makes spans where
OpenTelemetry's environment names a collector; `asgi` names the types.
"""
