"""imp: an LLM server for one's own machine."""

__version__ = "0.1.0"
