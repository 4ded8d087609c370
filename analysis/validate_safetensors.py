"""Is a served checkpoint healthy? Its tokenizer, greedy replays, a few prompts, logprobs, repetition, seeds, parity.

    python analysis/validate_safetensors.py [CHECKPOINT] --url URL

The same as `imp validate`, which also serves the checkpoint; needs Python and nothing else (torch and transformers for
parity).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "imp"))

from imp_server.validating.main import main

if __name__ == "__main__":
    sys.exit(main())
