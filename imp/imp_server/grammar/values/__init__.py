"""What a JSON Schema asks of a value: formulas over leaves, and the proof that some value satisfies them."""
