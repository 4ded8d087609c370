"""OpenAI's conversations: what /v1/responses goes on from."""
