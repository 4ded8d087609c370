"""The process that owns a model: the step loop, its messages, and the clients that talk to it (client/)."""
