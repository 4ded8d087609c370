"""From logits to a token: processors, the sampling law, logprobs, drafts and their verification. Plain numpy."""
