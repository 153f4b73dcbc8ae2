"""The applications' common front: access log, origins, traces."""
