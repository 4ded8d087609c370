"""The engine as the API process sees it: in a process of its own, in this one, or played from a script."""
