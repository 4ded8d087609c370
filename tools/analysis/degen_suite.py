"""The original's path to `analysis/degen_suite.py`, for scripts that know it."""

import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).resolve().parents[2] / "analysis" / "degen_suite.py"), run_name="__main__")
