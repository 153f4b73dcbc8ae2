"""What `tollkeeper doctor` looks at beside the configuration: disks, nodes, and the way from outside to the server."""
