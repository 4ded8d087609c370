"""AVX-VNNI's kernels on a machine that has AVX-512 instead: the same source in vectors of 256 bits, bit by bit."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest
from imp_server.backends.cpu import abi
from imp_server.backends.cpu.twin import Arithmetic, TwinMatrix
from imp_server.native import load_library, usable_isas

import build_native
from tests.backends.cpu.synthetic_models import random_tensor
from tests.kernels.test_cpu_matmul import TYPES, Packed, columns

WIDE = "avx512vnni"
ISA = "256 bits of AVX-512"
N_ROWS = 9

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        WIDE not in usable_isas() or shutil.which("c++") is None, reason="needs AVX-512 VNNI and a C++ compiler"
    ),
]


@pytest.fixture(scope="module")
def narrow_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine for AVX-512, compiled with 256-bit vectors."""
    found = build_native.find_build(tmp_path_factory.mktemp("narrow"))
    assert found is not None
    build = found._replace(flags=("-DIMP_VECTOR_256",))
    units, flags = build_native.libraries()["engine"], build.variants("engine")[WIDE]
    errors = [build_native.compile_unit(build, "engine", WIDE, flags, unit) for unit in units]
    errors.append(build_native.link(build, "engine", WIDE, units))
    assert not any(errors), errors
    return build.into / f"libengine-{WIDE}.so"


def test_products_equal_the_twin_and_avx_vnni(narrow_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = ctypes.CDLL(str(narrow_library))
    monkeypatch.setattr(abi, "load_library", lambda name, isa=None: loaded if isa == ISA else load_library(name, isa))
    others = [isa for isa in ("avxvnni", "avx2") if isa in usable_isas()]
    for type_name in TYPES:
        rng = np.random.default_rng(7)
        raw = random_tensor(type_name, (70, columns(type_name, 3)), rng)
        x = rng.standard_normal((N_ROWS, raw.shape[1])).astype(np.float32)
        want = TwinMatrix(raw).multiply(x, Arithmetic(has_fma=True))
        packed = Packed(raw, ISA)
        for n in range(1, N_ROWS + 1):
            np.testing.assert_array_equal(packed.multiply(x[:n]), want[:n], err_msg=f"{type_name}, {n} rows")
        for isa in others:
            np.testing.assert_array_equal(Packed(raw, isa).multiply(x), want, err_msg=f"{type_name}, {isa}")
