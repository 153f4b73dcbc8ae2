"""The data plane towards targets: address policy, connections, forwarding."""
