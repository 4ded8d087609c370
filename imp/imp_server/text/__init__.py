"""Between conversations and tokens: templates, prompts, output plans, detokenising, tool calls."""
