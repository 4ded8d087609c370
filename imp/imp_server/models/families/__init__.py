"""One module per family of models: its header -> Architecture, its tensors -> canonical names. Found by folder."""
