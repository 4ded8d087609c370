"""Makes the cuda backend; torch is imported only when it is made."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from imp_server.backends.base import Backend
from imp_server.backends.options import BackendOptions
from imp_server.core import ConfigError
from imp_server.models.rotation import frequencies
from imp_server.models.source import ModelSource

if TYPE_CHECKING:
    from imp_server.backends.cuda.card import Card, CardOpener

log = logging.getLogger(__name__)

NO_CARD = -1


def is_usable() -> bool:
    """Whether there is a card is seen when it is made: torch takes seconds to say so."""
    return find_spec("torch") is not None


def check(source: ModelSource) -> None:
    """Raises UnsupportedModel for parts or types of tensors that no operation has."""
    from imp_server.backends.cuda.lowering import matrix_names, refuse_what_we_lack
    from imp_server.backends.cuda.packing import check_packable

    refuse_what_we_lack(source.architecture)
    for rope in source.architecture.ropes():
        frequencies(rope)
    if source.header.format == "gguf":  # of a checkpoint each scheme has a format, and looking would unpack it
        for name in matrix_names(source.architecture):
            check_packable(source.raw(name).type.name)


def make(source: ModelSource, options: BackendOptions, on_progress: Callable[[float], None] | None) -> Backend:
    from imp_server.backends.cuda import planner
    from imp_server.backends.cuda.backend import CudaBackend
    from imp_server.backends.cuda.kernel_choice import KernelChoice

    check(source)
    card, opener = _card(options)
    device, cuda = card.device, options.cuda
    memory = planner.plan(
        source,
        free=device.free_bytes(),
        memory_mib=cuda.memory_mib,
        memory_fraction=cuda.memory_fraction,
        n_outputs=options.n_outputs,
        has_graphs=device.has_own_memory and cuda.graphs != "never",
        drafter=options.drafter,
    )
    log.info("%s", memory.text())
    kernels = KernelChoice(card, opener, cuda.kernels, source.header.path.name)
    return CudaBackend(
        source, device, kernels=kernels, deterministic=options.deterministic, memory=memory, on_progress=on_progress
    )


def _card(options: BackendOptions) -> tuple[Card, CardOpener]:
    """Raises ConfigError where there is no such card."""
    import torch

    from imp_server.backends.cuda.card import Card, gpu_opener
    from imp_server.backends.cuda.device import CpuDevice

    index = NO_CARD if options.cuda.gpu_layers == 0 else options.cuda.device
    if index == NO_CARD:
        torch.set_num_threads(max(1, options.cpu.threads))
        device = CpuDevice()
        return Card(device, None, device.detail, 1, "there is no GPU to launch kernels on"), gpu_opener(index)
    n_cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= n_cards:
        found = f"torch finds {n_cards} GPU(s)" if n_cards else "torch finds no GPU that it can use"
        raise ConfigError(f"cuda.device={index}: {found}; use --backend cpu, or see `imp doctor`")
    opener = gpu_opener(index)
    return opener.open(options.cuda.graphs), opener
