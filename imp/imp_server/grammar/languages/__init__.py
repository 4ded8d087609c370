"""Notations people write (regex, lark, GBNF, choices, envelopes), each read into a machine."""
