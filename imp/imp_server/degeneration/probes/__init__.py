"""A module per group of categories; each probe is a function from an Asker to findings."""
