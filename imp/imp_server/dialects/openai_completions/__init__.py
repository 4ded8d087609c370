"""OpenAI Completions."""
