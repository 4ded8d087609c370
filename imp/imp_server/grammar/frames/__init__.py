"""The frames of the pushdown automaton: one local state each of a JSON value, a gap, a text or an envelope."""
