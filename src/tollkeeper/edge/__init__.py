"""The edge: connections of callers, and connections to targets (contract 3.4, 4.7; security A-40 to A-42, A-58).

Promises:
- A request that two readers could understand differently reaches nobody (`server`).
- A target is connected to at an address that was checked, and at no other (`target`).
- Who is slow, silent or greedy holds up himself: times, bytes and connections are bounded, and shared by tenant.

Nothing here knows a payment, a gate or a route, and the rules of heads are pure (`core.http`).

Begin with `server.protocol`, into which every byte of a caller comes, or with `target.forwarder`, by which every call
leaves. `shared` is what both sides are made of. All of it is driven by callbacks: a call has a task here only while a
connection is opened for it, or its answer is read back from the disk.
"""
