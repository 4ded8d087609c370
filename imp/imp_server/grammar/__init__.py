"""What a completion may look like, as one byte automaton: checked (check.py), then advanced and masked (engine.py)."""
