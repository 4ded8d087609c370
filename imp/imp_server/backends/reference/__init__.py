"""The oracle: torch in float32, slow and plain. The only place besides backends/cuda that imports torch."""
