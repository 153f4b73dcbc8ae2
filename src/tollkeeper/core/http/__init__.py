"""HTTP as our listeners take it: heads, signatures, limits."""
