"""The tokenizer of a model and what each of its ids writes, in marked bytes (core.special)."""
