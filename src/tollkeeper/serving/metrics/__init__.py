"""The numbers of a process, and the address that tells them.

Promises:
- `/metrics` is at an address of its own, by default on this machine only, and never on the port that the world
  reaches.
- A number is counted where it happens and read when it is asked for; asking changes nothing and waits for no chain.
- No label has a value that strangers choose, so that nobody can make the table grow.

Names and meanings are what the metric itself says in its help text.

Begin with `metrics`, which serves them, too. The counts of answers come from `serving.http.access_log`. To add one:

- what the hub counts: a field of `HubMetrics` (`hub.metrics`), counted where it happens;
- what a gateway or a process counts: its counter stays an integer where it happens, and `metrics` reads it;
- what a check of the books finds: `serving.books`, each with a registry of its own.

Then docs/guide-operator.md names it, a panel of deploy/grafana shows it, and deploy/prometheus has its alert, if it is
worth one, with a rule test that raises it and one that does not: tests/test_project.py and tests/deploy ask for them.
`make deploy-check` plays the rule tests.
"""
