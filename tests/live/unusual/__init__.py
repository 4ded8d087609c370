"""Requests that the real APIs take and few clients send, as tables: one module per dialect."""
