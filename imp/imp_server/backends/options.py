"""What of the configuration a backend is made with."""

from __future__ import annotations

from typing import NamedTuple

from imp_server.config.running import CpuSettings, CudaSettings
from imp_server.models.source import ModelSource


class BackendOptions(NamedTuple):
    """Each backend looks at its own section."""

    cpu: CpuSettings = CpuSettings()
    cuda: CudaSettings = CudaSettings()
    n_outputs: int = 64
    """Most positions of a step that are sampled: rows times one more than the longest draft."""
    deterministic: bool = False
    """engine.deterministic."""
    drafter: ModelSource | None = None
    """A draft model that is loaded afterwards, so that its memory is set aside."""
