"""The original's path to `analysis/validate_safetensors.py`, for scripts that know it."""

import runpy
from pathlib import Path

if __name__ == "__main__":
    ours = Path(__file__).resolve().parents[1] / "analysis" / "validate_safetensors.py"
    runpy.run_path(str(ours), run_name="__main__")
