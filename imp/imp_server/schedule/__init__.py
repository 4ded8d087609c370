"""What runs next: the queue, rows, KV blocks, the prefix tree, and steps within a time budget. No tensors here."""
