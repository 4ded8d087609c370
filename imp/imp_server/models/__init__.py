"""What a model is (architecture.py) and how a file is opened as one (opening.py)."""
