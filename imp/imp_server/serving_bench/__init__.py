"""Load on a running server, and what its clients see: arrivals, shapes of prompts, latencies, goodput."""
