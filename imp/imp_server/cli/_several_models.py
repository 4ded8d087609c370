"""The models of a server of several: those of a folder, of a preset file, and what imp has fetched."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from imp_server.api.model_host import ModelHost, Source
from imp_server.api.model_text_side import ModelTextSide
from imp_server.api.router.names import named
from imp_server.api.router.residency import Room
from imp_server.backends.machine import available_bytes
from imp_server.config.load import Loaded
from imp_server.config.presets import Preset, read_presets
from imp_server.config.tree import Config
from imp_server.core import ConfigError, ImpError, InvalidRequest
from imp_server.engine.client.base import EngineClient
from imp_server.engine.client.process import ProcessEngine
from imp_server.logs import tell
from imp_server.weights.catalogue import find, hub_source, models_folder, remove, tagged
from imp_server.weights.known import KNOWN
from imp_server.weights.model_folder import FoundModel, models_in
from imp_server.workers.client import Workers

MakeEngine = Callable[[Path, str, Config], EngineClient]
_HUB = "hf:"
_MEMORY_SHARE = 0.9
"""Of what is free at start, for all models together, where nothing is configured."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A model that is to be served: what to open, and how. `problem`: why that can't be done."""

    name: str
    path: Path
    preset: Preset
    source: Source
    file_bytes: int = 0
    problem: str = ""


class DiskCatalogue:
    """Finds models anew each time it is asked (api/router/catalogue.py says what that is for)."""

    def __init__(self, loaded: Loaded, workers: Workers | None = None, make_engine: MakeEngine = ProcessEngine) -> None:
        """Raises ConfigError for a preset file that can't be read, and for a folder that isn't there."""
        self._loaded, self._workers, self._make_engine = loaded, workers, make_engine
        knobs = loaded.config.router
        self._short_names = loaded.config.server.habits == "llama-server"
        self._folder = Path(knobs.models_dir).expanduser() if knobs.models_dir else None
        if self._folder is not None and not self._folder.is_dir():
            raise ConfigError(f"--models-dir {knobs.models_dir}: there is no such folder")
        self._preset_file = Path(knobs.models_preset).expanduser() if knobs.models_preset else None
        self._presets = read_presets(self._preset_file, loaded)
        if loaded.config.model.alias:
            raise ConfigError("--alias names one model; give each of several its own in --models-preset")
        n_bytes = loaded.config.router.memory_mib << 20 or int(available_bytes() * _MEMORY_SHARE)
        self.room = Room(knobs.models_max, n_bytes)

    def hosts(self) -> list[ModelHost]:
        """The preset file is read anew; one that can't be read any more leaves what it said before."""
        try:
            self._presets = read_presets(self._preset_file, self._loaded)
        except ConfigError as error:
            tell(f"imp: {error.message}", logging.WARNING)
        hidden = [name for preset in self._presets.sections.values() for name in preset.hides]
        hosts: dict[str, ModelHost] = {}
        for entry in self._entries():
            host = self._host(entry)
            host.is_hidden = host.source == "catalogue" and _is_of(host.id.removeprefix(_HUB), hidden)
            hosts.setdefault(host.id, host)
        return list(hosts.values())

    def checked(self, name: str) -> str:
        """Names of paths aren't for clients."""
        if name in KNOWN:
            if not KNOWN[name].runs:
                raise _not_fetchable(f"model {name!r} can't be run yet, so it isn't fetched")
            return name
        found = None if name.startswith((".", "/", "~")) else hub_source(name)
        if found is None:
            raise _not_fetchable(
                f"{name[:200]!r} is nothing that can be fetched: give a known name (`imp ls --known`) or "
                "org/repo[:file or quantisation] of the hub"
            )
        return self._name(found[0])

    def _name(self, model: str) -> str:
        """llama-server's ids are those of the hub, without hf: in front."""
        return model.removeprefix(_HUB) if self._short_names else model

    def fetch_command(self, name: str) -> Sequence[str]:
        return (sys.executable, "-P", "-m", "imp_server.weights.fetching", self._long_name(self.checked(name)))

    def remove(self, name: str) -> None:
        remove(self._long_name(name))

    def _long_name(self, name: str) -> str:
        """Under which it is kept."""
        is_short = self._short_names and name not in KNOWN and "/" in name
        return f"{_HUB}{name}" if is_short and not name.startswith(_HUB) else name

    # --- entries --------------------------------------------------------------------------------

    def _entries(self) -> list[_Entry]:
        """Sections first: a file that one of them names isn't listed a second time."""
        found = models_in(self._folder) if self._folder is not None else []
        by_name = {model.name: model for model in found}
        entries = [self._of_section(preset, by_name) for preset in self._presets.sections.values()]
        taken = {entry.path for entry in entries}
        pulled = models_in(models_folder()) if self._loaded.config.router.catalogue else []
        if self._short_names:  # there a model in the cache is listed beside the section that names it
            taken -= {model.path for model in pulled}
        return entries + [self._of_file(model) for model in (*found, *pulled) if model.path not in taken]

    def _of_section(self, preset: Preset, found: dict[str, FoundModel]) -> _Entry:
        wanted = preset.config.model.path or preset.name
        beside = found.get(wanted)
        if beside is not None:
            return _Entry(preset.name, beside.path, preset, "preset", beside.file_bytes, preset.problem)
        try:
            model = find(tagged(wanted) if self._short_names else wanted, self._loaded.config.router.models_dir)
        except ImpError as error:
            return _Entry(preset.name, Path(wanted), preset, "preset", problem=preset.problem or error.message)
        path = None if model is None else model.local
        if path is None:
            problem = preset.problem or f"{wanted} isn't here yet; `imp pull {wanted}` or POST /models fetches it"
            return _Entry(preset.name, Path(wanted), preset, "preset", problem=problem)
        size = path.stat().st_size if path.is_file() else 0
        return _Entry(preset.name, path, preset, "preset", size, preset.problem)

    def _of_file(self, model: FoundModel) -> _Entry:
        own = self._presets.shared
        is_ours = model.is_pulled and model.path.is_relative_to(models_folder())
        return _Entry(
            self._name(model.name), model.path, own, "catalogue" if is_ours else "folder", model.file_bytes, own.problem
        )

    def _host(self, entry: _Entry) -> ModelHost:
        first, more = named(entry.preset.config.model.alias, entry.name)
        aliases = more if first == entry.name else (first, *more)
        plain = entry.preset.config
        config = msgspec.structs.replace(plain, model=msgspec.structs.replace(plain.model, path="", alias=""))
        return ModelHost(
            entry.name,
            self._make_engine(entry.path, entry.name, config),
            partial(ModelTextSide.load, entry.path, config, self._workers),
            config,
            aliases=aliases,
            tags=config.model.tags,
            source=entry.source,
            on_demand=True,
            loads_at_start=entry.preset.loads_at_start,
            prove=partial(_prove, entry.path),
            broken=entry.problem,
            file_bytes=entry.file_bytes,
            rest="unloaded",
        )


def _prove(path: Path) -> None:
    """Raises what an engine would find wrong with header, family and shapes."""
    from imp_server.models.opening import open_model

    open_model(path)


def _is_of(model: str, repositories: Sequence[str]) -> bool:
    """One of these repositories, or what was fetched of it by a file or a quantisation."""
    return any(model == repository or model.startswith(f"{repository}:") for repository in repositories)


def _not_fetchable(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="model", code="model_not_fetchable")
