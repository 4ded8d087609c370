"""The wire formats: a request -> ChatRequest, OutputEvents -> JSON or SSE. Handlers are found by operationId."""
