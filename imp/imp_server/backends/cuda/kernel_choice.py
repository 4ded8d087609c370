"""Which operations are a kernel's in a served model: none, all, or those that proved themselves on the card."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

import msgspec
import torch

from imp_server.backends.cuda.card import Card, CardOpener
from imp_server.backends.cuda.kernels import KERNELS, KernelOperations, Scratch
from imp_server.backends.cuda.launching import KernelFault
from imp_server.backends.cuda.operations import Operations
from imp_server.backends.cuda.plain.operations import PlainOperations
from imp_server.backends.cuda.proof.cases import OperationCall, RectangleShape, usual_rectangles
from imp_server.backends.cuda.proof.kept import SERVING, KernelVerdict
from imp_server.backends.cuda.proof.prover import KernelProver
from imp_server.backends.cuda.proof.verdicts import VerdictFile
from imp_server.config.running import KernelUse
from imp_server.core import ConfigError

log = logging.getLogger(__name__)

Prove = Callable[[CardOpener, Sequence[OperationCall]], KernelVerdict | None]


def try_kernels(opener: CardOpener, cases: Sequence[OperationCall]) -> KernelVerdict | None:
    return KernelProver(opener, cases).verdict()


class KernelChoice:
    """Owner of what was chosen for one model on one card."""

    def __init__(
        self,
        card: Card,
        opener: CardOpener,
        use: KernelUse,
        model: str,
        *,
        prove: Prove = try_kernels,
        rounds: bool = True,
        rectangles: Callable[[int], Sequence[RectangleShape]] = usual_rectangles,
    ) -> None:
        """`use`: cuda.kernels. `model`: for people. `rounds`: of KernelOperations. `rectangles`: at which kernels are
        tried, for tables of so many columns.

        Raises ConfigError where all kernels are asked for and none can be launched.
        """
        self.chosen: tuple[str, ...] = ()
        self.condemned: dict[str, str] = {}
        self._card, self._opener, self._use, self._model = card, opener, use, model
        self._prove, self._rounds, self.rectangles = prove, rounds, rectangles
        self._file: VerdictFile | None = None
        if card.launcher is None and card.lacks and use != "none":
            if use == "all":
                raise ConfigError(f"cuda.kernels=all: {card.lacks}")
            log.warning("plain operations are used, slowly: %s", card.lacks)

    @property
    def wants_cases(self) -> bool:
        return self._use != "none" and self._card.launcher is not None

    def operations(self, cases: Sequence[OperationCall]) -> Operations:
        """`cases`: what the model asks for; looked at only where `wants_cases`. May take minutes, once for each model,
        card and version."""
        plain = PlainOperations()
        launcher = self._card.launcher
        if launcher is None or self._use == "none":
            return plain
        self._file = VerdictFile(self._card.name, self._model, cases)
        self.chosen = self._all_but_faulted(self._file) if self._use == "all" else self._proved(self._file, cases)
        log.info("CUDA kernels: %s", self.text())
        if not self.chosen:
            return plain
        scratch = Scratch(self._card.device.torch_device)
        n = self._card.n_processors
        return KernelOperations(plain, launcher, scratch, self.chosen, n_processors=n, rounds=self._rounds)

    def text(self) -> str:
        """One line."""
        if not self.chosen and not self.condemned:
            return "none"
        said = f"{len(self.chosen)} of {len(KERNELS)} ({', '.join(self.chosen) or 'none'})"
        return said + "".join(f"; not {name}: {why}" for name, why in sorted(self.condemned.items()))

    def note_fault(self, operations: Collection[str]) -> None:
        """Kernels of these were under way when the card failed: they aren't used again."""
        if self._file is not None:
            self._file.condemn([name for name in operations if name in self.chosen])

    def _all_but_faulted(self, file: VerdictFile) -> tuple[str, ...]:
        known = file.read()
        faulted = {name: why for name, why in known.condemned.items() if why == SERVING} if known else {}
        self.condemned = faulted
        return tuple(name for name in KERNELS if name not in faulted)

    def _proved(self, file: VerdictFile, cases: Sequence[OperationCall]) -> tuple[str, ...]:
        verdict = file.read()
        if verdict is None or not verdict.was_tried:
            log.info("trying %d calls of CUDA kernels on %s; the result is kept", len(cases), self._card.name)
            faulted = verdict.condemned if verdict is not None else {}
            self._card.device.give_back()
            verdict = self._prove(self._opener, [case for case in cases if case.operation not in faulted])
            if verdict is None:
                return ()
            verdict = msgspec.structs.replace(verdict, condemned=verdict.condemned | faulted)
            if verdict.lasts:
                file.write(verdict)
        log.info("%s", verdict.text())
        self.condemned = dict(verdict.condemned)
        return tuple(verdict.proved)


def is_device_fault(error: BaseException) -> bool:
    """The card, or a kernel on it, failed: nothing that this process asks of it afterwards can be trusted."""
    if isinstance(error, KernelFault | torch.AcceleratorError):
        return True
    return type(error).__name__ in ("CUDADriverError", "CUDARuntimeError")
