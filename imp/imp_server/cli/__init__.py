"""The commands. A module of this folder without a leading underscore is the command of its name: it holds
`command`, and the first line of its docstring is its line in `imp --help`."""
