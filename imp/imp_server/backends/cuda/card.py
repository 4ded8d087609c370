"""A card as the backend uses it: what moves and captures (device.py), and what launches kernels on it."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import NamedTuple, cast

import torch

from imp_server.backends.cuda.device import Device, GpuDevice, GraphUse
from imp_server.backends.cuda.launching import Launcher
from imp_server.config.environment import imp_home
from imp_server.core import DeviceError

log = logging.getLogger(__name__)


class Card(NamedTuple):
    """`launcher` None: there are no kernels, as `lacks` says."""

    device: Device
    launcher: Launcher | None
    name: str
    """What verdicts on kernels hold for, beside their sources and the model: card, driver, libraries."""
    n_processors: int
    lacks: str = ""


class CardOpener(NamedTuple):
    """How another process gets the same card: `module:function`, called with `number` and the use of graphs."""

    place: str
    number: int

    def open(self, graphs: GraphUse) -> Card:
        module, _, function = self.place.partition(":")
        return cast(Card, getattr(import_module(module), function)(self.number, graphs))


def gpu_opener(index: int) -> CardOpener:
    return CardOpener(f"{__name__}:open_gpu", index)


def open_gpu(index: int, graphs: GraphUse) -> Card:
    """Kernels or not: what is missing for them is said in `lacks`."""
    from imp_server.backends.cuda.compile import nvrtc_version
    from imp_server.backends.cuda.cupy_launcher import CupyLauncher

    device = GpuDevice(index, graphs)
    n_processors = int(torch.cuda.get_device_properties(index).multi_processor_count)
    try:
        launcher = CupyLauncher(index, torch.cuda.get_device_capability(index), imp_home() / "kernels" / "cubins")
        made_by = ".".join(map(str, nvrtc_version()))
    except DeviceError as error:
        return Card(device, None, device.detail, n_processors, error.message)
    return Card(device, launcher, f"{device.detail}, driver {launcher.driver}, NVRTC {made_by}", n_processors)
