"""The cuda backend on a CPU, for tests: plain operations, and a cache that rounds nothing unless it is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from imp_server.backends.cuda.backend import CudaBackend
from imp_server.backends.cuda.device import CpuDevice


class PlainCuda(CudaBackend):
    """Keys and values in float32 by default, so that ids are those of the reference."""

    def __init__(self, source: Any, *, kv: str = "f32", **options: Any) -> None:
        torch.set_num_threads(1)  # as the reference: so small products gain nothing by more
        super().__init__(source, CpuDevice(), **options)
        self.info = replace(self.info, default_kv_dtype=kv)
