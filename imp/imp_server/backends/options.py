"""What of the configuration a backend is made with."""

from __future__ import annotations

from typing import NamedTuple

from imp_server.config.running import CpuSettings, CudaSettings


class BackendOptions(NamedTuple):
    """Each backend looks at its own section."""

    cpu: CpuSettings = CpuSettings()
    cuda: CudaSettings = CudaSettings()
