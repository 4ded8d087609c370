"""Tool formats: how families of models write calls, one file each."""
