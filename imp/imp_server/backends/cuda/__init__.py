"""The CUDA backend: a list of operations, a plain layer that has all of them, kernels that may stand in for some."""
