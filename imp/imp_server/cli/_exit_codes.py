"""Exit codes that no error of core/errors.py carries; the others are `UserFault.exit_code`."""

EXIT_USAGE = 1
EXIT_INTERNAL = 7
EXIT_CANCELLED = 8
