"""Degenerate answers of any chat server: loops, leaked thoughts and control tokens, mixed or lost streams.

    python analysis/degen_suite.py --url URL [--only CATEGORIES] [--corpus] [--baseline FILE] [--quick]

The same as `imp degen`; needs Python and nothing else. The baseline comes from `analysis/degen_baseline.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "imp"))

from imp_server.degeneration.main import main

if __name__ == "__main__":
    sys.exit(main())
