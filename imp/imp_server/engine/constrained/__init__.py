"""Rows under a grammar: the mask thread, who waits for it, and one row's place."""
