"""The HTTP side: the contract bound to its handlers, keys, bodies, streams; knows the engine through EngineClient."""
