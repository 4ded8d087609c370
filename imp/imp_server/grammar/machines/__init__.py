"""Byte automata: made, combined, and explored only where somebody goes."""
