"""The native CPU backend: packed weights, one native call per forward."""
