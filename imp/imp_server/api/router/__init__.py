"""Which models there are, and which of them are in memory: who keeps one there, who comes next, who goes."""
