"""Lark grammars, as far as clients may define the input of a tool with them."""
