"""Speculative decoding: who drafts, whether it pays, and the draft model."""
