"""What OpenAI's routes share, and its small routes: models, embeddings."""
