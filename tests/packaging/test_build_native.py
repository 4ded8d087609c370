"""What wheels call themselves, and that a build for another compiler never takes this one's objects."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from imp_server import native

import build_native
from build_native import Build, as_zig_has_it, platform_tag


@pytest.mark.parametrize(
    ("needs", "tag"),
    [
        (b"GLIBC_2.2.5\0GLIBC_2.14", "manylinux_2_17_x86_64"),
        (b"GLIBC_2.14\0GLIBC_2.27", "manylinux_2_27_x86_64"),
        (b"GLIBC_2.14\0GLIBCXX_3.4.29", "linux_x86_64"),  # tied to this machine's libstdc++
    ],
)
def test_a_wheel_names_the_oldest_userland_that_loads_it(tmp_path: Path, needs: bytes, tag: str) -> None:
    library = tmp_path / "libengine-portable.so"
    library.write_bytes(b"\x7fELF\0" + needs + b"\0")
    assert platform_tag([library], "x86_64") == tag


def test_objects_of_other_compilers_and_flags_lie_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    usual = Build(("c++",))
    others = [Build(("c++",), "riscv64"), Build(("c++",), flags=("-g",)), Build(("c++",), "riscv64", ("-g",))]
    monkeypatch.setenv("CXX", "clang++")
    others.append(Build(("clang++",)))
    assert len({build.objects for build in [*others]}) == len(others)
    monkeypatch.delenv("CXX")
    assert usual.objects == build_native.ROOT / "build" / "native"


def test_a_foreign_build_never_lands_beside_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "some-compiler --target x")
    monkeypatch.setenv("IMP_MACHINE", "aarch64")
    build = build_native.find_build()
    assert (
        build is not None and build.into != build_native.TARGET and build.compiler == ("some-compiler", "--target", "x")
    )
    assert list(build.variants("engine")) == ["portable", "dotprod", "i8mm"]
    assert list(build.variants("grammar")) == ["portable"]
    assert Build(("c++",), "riscv64").variants("engine") == {"portable": []}


def test_variants_that_differ_in_dot_products_share_the_rest() -> None:
    build = Build(("c++",), "x86_64")
    unit = build_native.SOURCES / "engine" / "forward.cpp"
    dots = build_native.SOURCES / "engine" / "tiles_four.cpp"
    assert build.object_path("engine", "avxvnni", unit) == build.object_path("engine", "avx2", unit)
    assert build.object_path("engine", "avxvnni", dots) != build.object_path("engine", "avx2", dots)
    computing = {
        path.stem for path in unit.parent.glob("*.cpp") if re.search(r"\bdot(4|16)<|kernel_for_rows<", path.read_text())
    }
    assert all(stem.startswith(build_native.DOT_SOURCES) for stem in computing)


def test_the_package_and_the_build_know_the_same_instruction_sets() -> None:
    assert {isa for variants in build_native.VARIANTS.values() for isa in variants} == set(native.ISAS)


@pytest.mark.parametrize(
    ("machine", "features", "usable"),
    [
        ("x86_64", "avx2 fma f16c bmi2", ["avx2", "portable"]),
        ("x86_64", "avx2 fma f16c bmi2 avx_vnni", ["avxvnni", "avx2", "portable"]),
        ("aarch64", "asimddp", ["dotprod", "portable"]),
        ("aarch64", "asimddp i8mm", ["i8mm", "dotprod", "portable"]),
        ("riscv64", "", ["portable"]),
    ],
)
def test_a_processor_gets_what_it_can_run(
    monkeypatch: pytest.MonkeyPatch, machine: str, features: str, usable: list[str]
) -> None:
    monkeypatch.setattr(native, "_machine", lambda: machine)
    monkeypatch.setattr(native, "cpu_features", lambda: frozenset(features.split()))
    assert list(native.usable_isas()) == usable


def test_instruction_sets_as_zig_spells_them() -> None:
    assert as_zig_has_it(["-march=x86-64-v4", "-mavx512vnni"]) == ["-march=x86_64_v4+avx512vnni"]
    assert as_zig_has_it(["-march=armv8.2-a+dotprod"]) == ["-march=generic+dotprod"]
    assert as_zig_has_it([]) == []


def test_commands_for_editors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    monkeypatch.setattr(build_native, "ROOT", tmp_path)
    written = build_native.write_commands(Build(("c++",)))
    entries = json.loads(written.read_text())
    units = {unit for found in build_native.libraries().values() for unit in map(str, found)}
    assert {entry["file"] for entry in entries} == units and all("-c" in entry["arguments"] for entry in entries)


def test_an_object_is_made_anew_when_what_it_was_made_of_differs(tmp_path: Path) -> None:
    """By content and flags: a checkout may give a file another content and an older time."""
    header, unit, output = tmp_path / "a.h", tmp_path / "a.cpp", tmp_path / "a.o"
    header.write_text("int f();")
    unit.write_text('#include "a.h"')
    output.write_bytes(b"object")
    output.with_suffix(".d").write_text(f"{output}: {unit} \\\n {header}\n")
    build_native.record_of(output).write_text(build_native.made_of(output, "c++ -O3"))
    os.utime(output, (0, 0))  # older than all
    assert build_native.is_recorded(output, build_native.made_of(output, "c++ -O3"))
    assert not build_native.is_recorded(output, build_native.made_of(output, "c++ -O2"))
    header.write_text("int g();")
    os.utime(header, (0, 0))
    assert not build_native.is_recorded(output, build_native.made_of(output, "c++ -O3"))
    header.unlink()
    assert not build_native.is_recorded(output, build_native.made_of(output, "c++ -O3"))
