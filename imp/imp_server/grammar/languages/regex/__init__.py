"""ECMA-262 regular expressions -> expressions over code points (grammar/machines/nodes.py)."""
