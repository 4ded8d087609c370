"""What differs between a GPU and a CPU: copies both ways, captured graphs, memory that is free.

On a CPU everything is done when a call returns, which is how tests run the rest. On a GPU all work is put on one
stream in the order of the calls; the host waits for results only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch

from imp_server.backends.machine import available_bytes

Tensor = torch.Tensor
Array = npt.NDArray[Any]
GraphUse = Literal["auto", "always", "never"]

RING = 8
"""Pinned buffers of each size for what goes to the device."""


class HostCopy(Protocol):
    """A copy to the host that was begun."""

    def wait(self) -> Array:
        """Its array, once it is there; the reader's own."""
        ...


class Device(Protocol):
    torch_device: torch.device
    detail: str
    has_own_memory: bool

    def upload(self, target: Tensor, values: Array) -> None:
        """`values` may change as soon as it returns."""
        ...

    def download(self, source: Tensor) -> HostCopy: ...

    def run(self, key: Hashable, work: Callable[[], None], *, is_decode: bool) -> None:
        """Do `work`, which does the same to the same memory each time that it comes with this key."""
        ...

    def forget_graphs(self) -> None:
        """Memory that they work on has moved."""
        ...

    def free_bytes(self) -> int: ...

    def give_back(self) -> None:
        """Memory that is kept for reuse, as another process is about to need some."""
        ...

    def counters(self) -> Mapping[str, float]: ...


class CpuDevice:
    """Implements `Device`: the plain operations where there is no GPU, for tests and comparisons."""

    torch_device = torch.device("cpu")
    has_own_memory = False

    def __init__(self) -> None:
        self.detail = f"no GPU: plain operations of torch {torch.__version__} on the CPU"

    def upload(self, target: Tensor, values: Array) -> None:
        target.copy_(torch.from_numpy(np.ascontiguousarray(values)))

    def download(self, source: Tensor) -> HostCopy:
        return Arrived(source.detach().clone().numpy())

    def run(self, key: Hashable, work: Callable[[], None], *, is_decode: bool) -> None:
        work()

    def forget_graphs(self) -> None:
        return

    def free_bytes(self) -> int:
        return available_bytes()

    def give_back(self) -> None:
        return

    def counters(self) -> Mapping[str, float]:
        return Graphs.no_counters()


class Arrived:
    """Implements `HostCopy`: it is there already."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def wait(self) -> Array:
        return self._array


class Event(Protocol):
    """As torch.cuda.Event has it."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


class PinnedRing:
    """Owner of pinned buffers for copies to the device: each is used again only once its copy is done."""

    def __init__(self, allocate: Callable[[int], Tensor], make_event: Callable[[], Event]) -> None:
        """`allocate`: bytes -> a uint8 tensor that the device can copy from and to by itself."""
        self._allocate, self._make_event = allocate, make_event
        self._buffers: dict[int, list[tuple[Tensor, Event]]] = {}
        self._next: dict[int, int] = {}

    def take(self, n_bytes: int) -> tuple[Tensor, Event]:
        """A buffer of at least so many bytes, and the event to record behind the copy."""
        size = _whole_size(n_bytes)
        ring = self._buffers.setdefault(size, [])
        at = self._next.get(size, 0)
        self._next[size] = (at + 1) % RING
        if len(ring) <= at:
            ring.append((self._allocate(size), self._make_event()))
        buffer, event = ring[at]
        event.synchronize()
        return buffer[:n_bytes], event


class PinnedLoans:
    """Owner of pinned buffers for copies to the host: each is somebody's until its content was read."""

    def __init__(self, allocate: Callable[[int], Tensor], make_event: Callable[[], Event]) -> None:
        """As of PinnedRing."""
        self._allocate, self._make_event = allocate, make_event
        self._free: dict[int, list[tuple[Tensor, Event]]] = {}

    def take(self, like: Tensor) -> PinnedDownload:
        size = _whole_size(like.numel() * like.element_size())
        free = self._free.setdefault(size, [])
        buffer, event = free.pop() if free else (self._allocate(size), self._make_event())
        return PinnedDownload(self, buffer, event, like)

    def give_back(self, buffer: Tensor, event: Event) -> None:
        self._free[len(buffer)].append((buffer, event))


class PinnedDownload:
    """Implements `HostCopy`. `target`: where the copy goes, before `event` is recorded."""

    def __init__(self, loans: PinnedLoans, buffer: Tensor, event: Event, like: Tensor) -> None:
        self._loans, self._buffer, self.event = loans, buffer, event
        n_bytes = like.numel() * like.element_size()
        self.target = buffer[:n_bytes].view(like.dtype).view(like.shape)

    def wait(self) -> Array:
        """Called once."""
        self.event.synchronize()
        array: Array = self.target.clone().numpy()
        self._loans.give_back(self._buffer, self.event)
        return array


def _whole_size(n_bytes: int) -> int:
    size = 256
    while size < n_bytes:
        size *= 2
    return size


class Replayable(Protocol):
    """As torch.cuda.CUDAGraph has it."""

    def replay(self) -> None: ...


class Graphs:
    """Owner of captured work. `use` (cuda.graphs): auto = that of decoding alone."""

    def __init__(self, use: GraphUse, capture: Callable[[Callable[[], None]], Replayable]) -> None:
        """`capture` notes the work down and doesn't do it."""
        self._use, self._capture = use, capture
        self._known: dict[Hashable, Replayable | None] = {}
        self._n_replayed = self._n_captured = self._n_uncaptured = 0

    @staticmethod
    def no_counters() -> dict[str, float]:
        return {"cuda_graph_replays_total": 0.0, "cuda_graph_captures_total": 0.0, "cuda_uncaptured_total": 0.0}

    def counters(self) -> dict[str, float]:
        """Work done by a graph that was there, graphs captured, work done as it is."""
        counts = (self._n_replayed, self._n_captured, self._n_uncaptured)
        return dict(zip(self.no_counters(), map(float, counts), strict=True))

    def run(self, key: Hashable, work: Callable[[], None], *, is_decode: bool) -> None:
        if self._use == "never" or (self._use == "auto" and not is_decode):
            self._n_uncaptured += 1
            work()
            return
        if key not in self._known:
            self._n_uncaptured += 1
            work()  # the first time as it is: what is compiled or set up at first use can't be captured
            self._known[key] = None
            return
        graph = self._known[key]
        if graph is None:
            self._n_captured += 1
            graph = self._known[key] = self._capture(work)
        else:
            self._n_replayed += 1
        graph.replay()

    def forget(self) -> None:
        self._known.clear()


def _pinned(n_bytes: int) -> Tensor:
    return torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)


def _event() -> Event:
    event: Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    return event


class GpuDevice:
    """Implements `Device` on a CUDA card."""

    has_own_memory = True

    def __init__(self, index: int, graphs: GraphUse) -> None:
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(self.torch_device)
        major, minor = torch.cuda.get_device_capability(index)
        self.detail = f"{torch.cuda.get_device_name(index)}, sm_{major}{minor}, torch {torch.__version__}"
        self._ring, self._loans = PinnedRing(_pinned, _event), PinnedLoans(_pinned, _event)
        self._graphs = Graphs(graphs, self._captured)
        self._pool: Any = None

    def upload(self, target: Tensor, values: Array) -> None:
        own = np.ascontiguousarray(values)
        buffer, event = self._ring.take(own.nbytes)
        host = buffer.view(target.dtype).view(target.shape)
        host.numpy()[...] = own.reshape(tuple(target.shape))
        target.copy_(host, non_blocking=True)
        event.record()

    def download(self, source: Tensor) -> HostCopy:
        download = self._loans.take(source)
        download.target.copy_(source, non_blocking=True)
        download.event.record()
        return download

    def run(self, key: Hashable, work: Callable[[], None], *, is_decode: bool) -> None:
        self._graphs.run(key, work, is_decode=is_decode)

    def _captured(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            work()
        self._pool = graph.pool()
        return graph

    def forget_graphs(self) -> None:
        self._graphs.forget()
        self._pool = None

    def give_back(self) -> None:
        torch.cuda.empty_cache()

    def counters(self) -> Mapping[str, float]:
        return self._graphs.counters()

    def free_bytes(self) -> int:
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        return int(free)
