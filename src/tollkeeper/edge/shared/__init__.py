"""Parts of both sides: deadlines, heads, chunks."""
