"""From states to token masks: the vocabulary's tries, the walks over the tables, what fits the limit."""
