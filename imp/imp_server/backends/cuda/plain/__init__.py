"""The plain layer: every operation in torch, on whatever device torch has."""
