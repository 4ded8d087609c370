"""ECMA-262 regular expressions -> expressions over code points (grammar/nodes.py)."""
