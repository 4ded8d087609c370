"""OpenAI Responses and Open Responses."""
