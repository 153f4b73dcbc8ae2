"""The pure core: no fixture, no await; a file per module of `tollkeeper.core`."""
