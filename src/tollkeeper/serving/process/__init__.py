"""The process under the program: its descriptors, its memory, its imports.

Promises:
- A process takes as many descriptors as its system allows, and keeps some for itself, so that callers cannot take the
  last one (`machine`).
- Memory that was freed goes back to the system where it is much (`machine`).
- Whatever is done before the thousand modules are imported makes the start sooner or smaller, and changes nothing else
  (`imports`).
- Workers of one command take callers from one listener, and one that dies is started again (`workers`).

Nothing here knows a PayGate or a payment.

Begin with `machine`. The process's life is in `serving.run`.
"""
