"""Killable processes for work that a client or a model file could make endless."""
