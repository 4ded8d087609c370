"""The conformance kit: runs the cases of conformance/cases against any server and reports the score."""
