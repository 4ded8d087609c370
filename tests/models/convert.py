"""llama.cpp's own converter on folders of tiny models, run by its Python, not ours.

    python convert.py CONVERTER PRE IN OUT [PRE IN OUT ...]

CONVERTER is the folder that holds convert_hf_to_gguf.py (vendor/llama.cpp in the sources of llama-cpp-python). PRE
stands in for the name that it finds by hashing what the tokenizer makes of a text. Nothing else of it is touched, but
that Hunyuan's mixture, whose published tokenizer is code of its own, has its words written as most models have.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    converter = Path(sys.argv[1])
    sys.path[:0] = [str(converter), str(converter / "gguf-py")]
    from conversion.base import TextModel  # type: ignore[import-not-found]
    from conversion.hunyuan import HunYuanMoEModel  # type: ignore[import-not-found]

    HunYuanMoEModel.set_vocab = TextModel._set_vocab_gpt2
    jobs: list[Any] = list(zip(sys.argv[2::3], sys.argv[3::3], sys.argv[4::3]))
    for pre, folder, out in jobs:
        TextModel.get_vocab_base_pre = lambda _self, _tokenizer, pre=pre: pre
        sys.argv = ["convert_hf_to_gguf.py", folder, "--outfile", out, "--outtype", "f32"]
        runpy.run_path(str(converter / "convert_hf_to_gguf.py"), run_name="__main__")


if __name__ == "__main__":
    main()
