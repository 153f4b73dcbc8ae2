"""The listener's connections: heads read strictly, slow callers given up."""
