"""Is an answer still language? Probes, detectors and a corpus for any chat server; standard library only."""
