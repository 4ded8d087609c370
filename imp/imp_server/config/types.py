"""The kinds of value a knob can have; bounds are checked and written into help and docs from here."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]
Delay = Annotated[float, Meta(gt=0)]
"""Seconds that can't be 0."""
Milliseconds = Annotated[float, Meta(gt=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
OrModels = Annotated[float, Meta(ge=-1, le=10)]
OrModelsShare = Annotated[float, Meta(ge=-1, le=1)]
OrModelsCount = Annotated[int, Meta(ge=-1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Percent = Annotated[int, Meta(ge=0, le=100)]
CardIndex = Annotated[int, Meta(ge=-1)]
GpuLayers = Annotated[int, Meta(ge=-1, le=0)]
Norm = Annotated[int, Meta(ge=-1, le=1000)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Words = tuple[str, ...]
"""Repeat the flag, or give one comma-separated list."""
Secrets = Annotated[tuple[str, ...], Meta(extra={"secret": True})]
"""Never printed."""
