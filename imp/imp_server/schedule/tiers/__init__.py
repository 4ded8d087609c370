"""Lower tiers of the prefix cache: where evicted KV blocks go, and come back from bit by bit the same."""
