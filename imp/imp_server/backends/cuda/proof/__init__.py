"""Kernels prove themselves on the card, each against its plain twin, in a process of their own."""
