"""Chain families behind three verbs: state, submit, wait."""
