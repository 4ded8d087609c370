"""JSON Schema, drafts 4 to 2020-12, -> formulas of the grammar: documents, references, keywords."""
