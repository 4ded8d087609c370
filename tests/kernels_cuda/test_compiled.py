"""What NVRTC makes of the kernels: every architecture, no spilled registers, the instructions that were meant."""

from __future__ import annotations

import os
import struct
from collections import Counter
from pathlib import Path

import pytest
from imp_server.backends.cuda import compile as compiling
from imp_server.backends.cuda import cubins
from imp_server.backends.cuda.compile import ARCHITECTURES, compile_cubin, kernel_sources, nvrtc, nvrtc_version
from imp_server.backends.cuda.cubins import PROCESSORS, KernelFacts, kernels_of
from imp_server.backends.cuda.kernels import ProductMode, attention_source, gemv_source
from imp_server.backends.cuda.launching import KernelSource
from imp_server.core import DeviceError

from analysis.cuda_kernels import SAMPLE, everything, faults, table
from analysis.sass import LOCAL, count, disassembled, disassembler, parsed


def has_nvrtc() -> bool:
    try:
        nvrtc()
    except DeviceError:
        return False
    return True


def is_ci() -> bool:
    return bool(os.environ.get("CI") or os.environ.get("REQUIRE_NATIVE"))


needs_nvrtc = pytest.mark.skipif(not has_nvrtc() and not is_ci(), reason=f"there is no NVRTC ({compiling.MEND})")
needs_nvdisasm = pytest.mark.skipif(
    not (has_nvrtc() and disassembler()) and not is_ci(),
    reason="there is no nvdisasm (pip install nvidia-cuda-nvdisasm)",
)


@needs_nvrtc
@pytest.mark.parametrize("name", SAMPLE)
def test_one_of_each_kind_compiles(name: str) -> None:
    """For one architecture in turn; the slow test has all."""
    arch = ARCHITECTURES[list(SAMPLE).index(name) % len(ARCHITECTURES)]
    found = kernels_of(compile_cubin(SAMPLE[name], arch))
    assert found and [fault for facts in found for fault in faults(facts, arch)] == []


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_everything_compiles(arch: int) -> None:
    wrong = []
    for name, source in everything().items():
        wrong += [f"{name}: {f}" for facts in kernels_of(compile_cubin(source, arch)) for f in faults(facts, arch)]
    assert wrong == []


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_table_of_the_docs_is_what_they_became() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "cuda.md").read_text()
    if f"with NVRTC {'.'.join(map(str, nvrtc_version()))}:" not in page:
        pytest.skip("the table was made with another NVRTC")
    lines, wrong = table(SAMPLE)
    assert wrong == [] and "\n".join(lines) in page


@needs_nvrtc
def test_every_file_is_in_the_sample() -> None:
    files = {source.file for source in everything().values()}
    assert files == {name for name in kernel_sources() if name.endswith(".cu")}


@needs_nvrtc
def test_what_is_wrong_is_told() -> None:
    with pytest.raises(DeviceError, match=r"norm.cu doesn't compile.*sm_90"):
        compile_cubin(KernelSource("norm.cu"), 90, ["-Df32=1"])
    with pytest.raises(DeviceError, match="sm_12"):
        compile_cubin(KernelSource("norm.cu"), 12)


@needs_nvrtc
def test_cubins_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_cubin(KernelSource("copy.cu"), 90, folder=tmp_path / "kernels")
    (kept,) = (tmp_path / "kernels").iterdir()
    assert kept.read_bytes() == first and kept.name.startswith("copy-sm90-")
    monkeypatch.setattr(compiling, "_compiled", lambda *_: pytest.fail("compiled again"))
    assert compile_cubin(KernelSource("copy.cu"), 90, folder=tmp_path / "kernels") == first
    monkeypatch.setattr(compiling, "_compiled", lambda *_: b"another")
    (tmp_path / "no folder").write_text("")
    sources = kernel_sources() | {"device.h": kernel_sources()["device.h"] + "\n"}
    monkeypatch.setattr(compiling, "kernel_sources", lambda: sources)
    assert compile_cubin(KernelSource("copy.cu"), 90, folder=tmp_path / "kernels") == b"another"
    assert compile_cubin(KernelSource("copy.cu"), 80, folder=tmp_path / "no folder") == b"another"
    assert len(list((tmp_path / "kernels").iterdir())) == 2 and nvrtc_version() >= (12, 8)


def test_without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_NAMES", ("libnothing.so",))
    monkeypatch.setattr(compiling, "_wheels", list)
    nvrtc.cache_clear()
    with pytest.raises(DeviceError, match="pip install"):
        compile_cubin(KernelSource("norm.cu"), 90)
    nvrtc.cache_clear()


@pytest.mark.parametrize("facts, arch, warps", [
    (KernelFacts("k", 128, 0, 9344, 128), 90, 16),
    (KernelFacts("k", 32, 0, 0, 128), 90, 64),
    (KernelFacts("k", 32, 0, 0, 128), 86, 48),
    (KernelFacts("k", 16, 0, 0, 32), 86, 16),
    (KernelFacts("k", 32, 0, 50 * 1024, 256), 86, 8),
    (KernelFacts("k", 32, 0, 50 * 1024, 256), 90, 32),
    (KernelFacts("k", 255, 0, 0, 1024), 90, 0),
    (KernelFacts("k", 32, 0, 100 * 1024, 128), 120, 0),
])  # fmt: skip
def test_warps_at_once(facts: KernelFacts, arch: int, warps: int) -> None:
    """Against NVIDIA's occupancy rules, worked out by hand."""
    assert facts.warps_at_once(arch) == warps
    assert set(PROCESSORS) == set(ARCHITECTURES)


def test_what_is_no_cubin_is_refused() -> None:
    with pytest.raises(ValueError, match="ELF"):
        kernels_of(b"\x7fELF\x01" + bytes(60))
    assert cubins._attributes(struct.pack("<BBHIBBH", 4, 0x2F, 4, 9, 3, 0x1B, 255)) == [
        (0x2F, struct.pack("<I", 9)),
        (0x1B, struct.pack("<H", 255)),
    ]


def test_loops_are_found() -> None:
    code = parsed("""
.text.one:
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_1:
        /*0010*/                   LDG.E.128 R4, [R2.64] ;
.L_x_0:
        /*0020*/              @!P0 LDS.128 R8, [R3] ;
        /*0030*/               @P0 BRA `(.L_x_0) ;
        /*0040*/               @P1 BRA `(.L_x_1) ;
        /*0050*/                   EXIT ;
.L_x_2:
        /*0060*/                   BRA `(.L_x_2);
.text.two:
        /*0000*/                   STL [R1], R0 ;
""")
    assert set(code) == {"one", "two"} and code["two"].whole == Counter({"STL": 1})
    inner, outer = Counter({"LDS.128": 1, "BRA": 1}), Counter({"LDG.E.128": 1, "LDS.128": 1, "BRA": 2})
    assert code["one"].loops == (outer, inner, Counter({"BRA": 1}))
    assert code["one"].hottest("LDS") == inner and code["one"].hottest("LDG") == outer
    assert count(code["one"].whole, "LDG", "128") == 1 and count(code["one"].whole, "LDG", "64") == 0


@needs_nvdisasm
def test_the_loop_over_weights_streams_vectors() -> None:
    program = disassembler()
    assert program
    for name, least_loads in (("BF16", 4), ("Q4_K", 4), ("Q8_0", 8)):
        code = disassembled(compile_cubin(gemv_source(name, ProductMode.bias, 1, 4), 90), program)["gemv"]
        loop = code.hottest("FFMA")
        assert count(loop, "LDG", "128", "CONSTANT") == least_loads, name
        assert count(loop, "LDS", "128") * 4 == (8 if name == "BF16" else 32)
        assert count(loop, "FFMA") >= 4 * (8 if name == "BF16" else 32)
        assert not sum(count(code.whole, opcode) for opcode in LOCAL)
        assert count(loop, "I2F") + count(loop, "I2FP") <= 8  # scales alone


@needs_nvdisasm
def test_attention_streams_vectors_and_uses_tensor_cores() -> None:
    program = disassembler()
    assert program
    decode = disassembled(compile_cubin(attention_source(128, "bf16", 4), 80), program)["decode_attention"]
    loop = decode.hottest("FFMA")
    assert count(loop, "LDG", "128") == 4 and count(loop, "MUFU", "EX2") >= 8
    prefill = disassembled(compile_cubin(SAMPLE["prefill attention, 128, bf16"], 90), program)["prefill_attention"]
    loop = prefill.hottest("HMMA")
    assert count(loop, "HMMA", "16816", "F32", "BF16") == 4 * 8 + 2 * 16
    assert count(loop, "LDSM") == 32 and count(prefill.whole, "LDGSTS", "128") > 0
    gemm = disassembled(compile_cubin(SAMPLE["gemm, Q4_K, 64 rows"], 120), program)["gemm"]
    assert count(gemm.hottest("HMMA"), "HMMA", "16816", "F32", "BF16") >= 16
    for code in (decode, prefill, gemm):
        assert not sum(count(code.whole, opcode) for opcode in LOCAL)
