"""Finds a shortest value for a formula, or shows that there is none; the proof behind every offered byte."""
