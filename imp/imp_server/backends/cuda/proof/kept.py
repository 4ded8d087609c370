"""What is known of kernels, as it is kept in files and told to people; needs no torch."""

from __future__ import annotations

from pathlib import Path

import msgspec

from imp_server.config.environment import imp_home

NO_MEMORY, NO_TIME = "no memory to try it", "no time to try it"
"""What says nothing of a kernel."""
SERVING = "it was under way when the card failed"


class KernelVerdict(msgspec.Struct, frozen=True):
    """`condemned`: by operation, why. What is in neither wasn't wanted by the model, or has no kernel at its shapes."""

    proved: list[str]
    condemned: dict[str, str]
    n_cases: int = 0
    compile_s: float = 0.0
    run_s: float = 0.0
    was_tried: bool = True
    """False: all that is known is what failed while serving."""

    @property
    def lasts(self) -> bool:
        """Another try would come to the same."""
        return not any(why in (NO_MEMORY, NO_TIME) for why in self.condemned.values())

    def text(self) -> str:
        said = f"kernels for {len(self.proved)} operations proved in {self.n_cases} cases"
        if self.compile_s or self.run_s:
            said += f" (compiling {self.compile_s:.1f} s, running {self.run_s:.1f} s)"
        return said + "".join(f"; not {name}: {why}" for name, why in sorted(self.condemned.items()))


class KeptVerdict(msgspec.Struct, frozen=True):
    """A file. `model`: for people."""

    card: str
    model: str
    verdict: KernelVerdict


def folder() -> Path:
    return imp_home() / "kernels" / "verdicts"


def all_kept() -> list[KeptVerdict]:
    """Files that can't be read are left out."""
    found = []
    for path in sorted(folder().glob("*.json")) if folder().is_dir() else []:
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=KeptVerdict))
        except (OSError, msgspec.MsgspecError):
            continue
    return found
