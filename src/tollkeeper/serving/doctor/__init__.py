"""`tollkeeper doctor`: everything that an operator would look at, beside the configuration itself.

Promises:
- It looks from outside where it can: by the public URL, as a caller goes, and at each node by itself.
- Each finding says what is wrong and what to do about it; a question that could not be asked is a finding too.
- It charges nobody, writes nothing and waits for no answer without a limit.

Findings are what is good, warnings, errors, and what remains for the operator to check (`config.findings`).

Begin with `examination`, which puts the questions in their order; `nodes` asks the nodes, `public_url` goes the way
from outside.
"""
