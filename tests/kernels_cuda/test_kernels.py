"""Each kernel in the emulation against its plain twin, on random and awkward shapes, under each kind of schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from imp_server.backends.cuda.formats import FLOATS, FORMATS
from imp_server.backends.cuda.kernels import KernelOperations, Scratch
from imp_server.backends.cuda.operations import (
    AttentionForm,
    NormForm,
    QkvForm,
    QueryTemperature,
    Rotation,
    RouterForm,
    Rows,
    SlotState,
)
from imp_server.backends.cuda.plain.operations import PlainOperations

from tests.kernels_cuda.emulated import ORDERS, Emulator
from tests.kernels_cuda.made_up import cache, matrix, normal, nothing, rows, seeded

PLAIN = PlainOperations()
USUAL_FORMATS = ("Q4_K", "Q6_K", "IQ4_NL", "BF16")
Tensor = torch.Tensor


def kernels(order: str = "random", seed: int = 0, **more: int) -> KernelOperations:
    emulator = Emulator(order=order, seed=seed)  # type: ignore[arg-type]
    return KernelOperations(PLAIN, emulator, Scratch(torch.device("cpu")), **more)  # type: ignore[arg-type]


def assert_near(ours: Tensor, twin: Tensor, within: float = 1e-5) -> None:
    """Relative to the twin's largest number."""
    assert torch.isfinite(twin).all()
    worst = (ours - twin).abs().max() / twin.abs().max().clamp_min(1e-20)
    assert worst <= within, float(worst)


def orders(*values: object, usual: int = 99) -> pytest.MarkDecorator:
    """The first values under one schedule each in the usual run; all under all of them in the slow one. What has to be
    compiled for the usual run counts."""
    cases = [
        pytest.param(value, order, marks=() if order == ORDERS[i % 3] and i < usual else pytest.mark.slow)
        for i, value in enumerate(values)
        for order in ORDERS
    ]
    return pytest.mark.parametrize("case, order", cases)


@orders((1, 40, False, True), (3, 257, True, True), (2, 1024, False, False), (2, 32, True, False))
def test_add_norm(case: tuple[int, int, bool, bool], order: str) -> None:
    n, size, centred, has_delta = case
    g = seeded(n + size)
    stream, delta = normal(g, n, size), normal(g, n, size) if has_delta else None
    norm = NormForm(1e-6, normal(g, size) if size != 32 else None, normal(g, size) if centred else None, centred)
    twin_stream, twin, ours = stream.clone(), nothing(n, size), nothing(n, size)
    PLAIN.add_norm(twin_stream, delta, 0.3, norm, twin)
    kernels(order).add_norm(stream, delta, 0.3, norm, ours)
    assert torch.equal(stream, twin_stream)
    assert_near(ours, twin)


@orders((2, 96), (1, 640))
def test_norm_of_slices_in_place(case: tuple[int, int], order: str) -> None:
    n, size = case
    g = seeded(size)
    wide = normal(g, n, size + 64)
    norm = NormForm(1e-5, normal(g, size))
    twin, ours = wide.clone(), wide.clone()
    PLAIN.norm(twin[:, 32 : 32 + size], norm, twin[:, 32 : 32 + size])
    kernels(order).norm(ours[:, 32 : 32 + size], norm, ours[:, 32 : 32 + size])
    assert_near(ours, twin)


@orders(*USUAL_FORMATS, *(name for name in (*FORMATS, *FLOATS) if name not in USUAL_FORMATS), usual=4)
def test_project(case: str, order: str) -> None:
    g = seeded(len(case))
    n, n_out, n_in = 2, 37, 288 if case != "BF16" else 1048
    m, wide = matrix(case, n_out, n_in, 3), normal(g, n, n_in + 32)
    x, bias = wide[:, 16 : 16 + n_in], normal(g, n_out) if case in ("Q4_K", "BF16") else None
    twin, ours = nothing(n, n_out), nothing(n, n_out)
    PLAIN.project(x, m, bias, twin)
    kernels(order).project(x, m, bias, ours)
    assert_near(ours, twin)


@pytest.mark.slow
@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize("name", [*FORMATS, *FLOATS])
def test_project_rows_are_independent(name: str, n: int) -> None:
    """Bit by bit: a token's numbers depend neither on how many others there are nor on what they hold."""
    g = seeded(n)
    m, x = matrix(name, 70, 2080, n), normal(g, n, 2080)
    x[n // 2] *= 1e30
    many, alone, twin = nothing(n, 70), nothing(n, 70), nothing(n, 70)
    kernels(n_processors=1).project(x, m, None, many)
    for i in range(n):
        kernels("lowest", n_processors=1).project(x[i : i + 1], m, None, alone[i : i + 1])
    assert torch.equal(many, alone)
    PLAIN.project(x, m, None, twin)
    for i in range(n):
        assert_near(many[i], twin[i])


ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "relu2", "swiglu_clamped")


@orders(*ACTIVATIONS)
def test_gated_project(case: str, order: str) -> None:
    g = seeded(len(case))
    gate, up = matrix("Q4_0", 21, 64, 1), matrix("Q4_0", 21, 64, 2)
    x, biases = 3 * normal(g, 3, 64), (normal(g, 21), normal(g, 21)) if case != "silu" else None
    twin, ours = nothing(3, 21), nothing(3, 21)
    PLAIN.gated_project(x, gate, up, biases, case, twin)  # type: ignore[arg-type]
    kernels(order).gated_project(x, gate, up, biases, case, ours)  # type: ignore[arg-type]
    assert_near(ours, twin)


GEMM = (*FORMATS, "BF16")
USUAL_GEMM = ("Q4_K",)


@pytest.mark.parametrize("name, sums", [
    pytest.param(name, sums, marks=() if name in USUAL_GEMM and sums == "truncated" else pytest.mark.slow)
    for name in GEMM for sums in ("exact", "truncated")
])  # fmt: skip
def test_project_some_rows(name: str, sums: str) -> None:
    """Rounded activations: the bound is that of bfloat16."""
    g = seeded(len(name))
    n, n_out, n_in = (9, 20, 288) if name in USUAL_GEMM else (37, 70, 96)
    m, x, bias = matrix(name, n_out, n_in, 3), normal(g, n, n_in), normal(g, n_out)
    twin, ours, emulator = nothing(n, n_out), nothing(n, n_out), Emulator(seed=1, sums=sums)  # type: ignore[arg-type]
    operations = KernelOperations(PLAIN, emulator, Scratch(torch.device("cpu")))
    PLAIN.project(x, m, bias, twin)
    operations.project(x, m, bias, ours)
    assert emulator.n_launches == 1
    assert_near(ours, twin, 2**-8)
    PLAIN.project(x.bfloat16().float(), m, bias, twin)
    assert_near(ours, twin, 1e-5 if sums == "exact" else 1e-4)
    if name == "Q4_K":
        biases = normal(g, n_out), normal(g, n_out)
        up = matrix(name, n_out, n_in, 4)
        PLAIN.gated_project(x, m, up, biases, "gelu_tanh", twin)
        operations.gated_project(x, m, up, biases, "gelu_tanh", ours)
        assert_near(ours, twin, 2**-7)
        PLAIN.head_logits(x, m, bias, 0.5, 3.0, twin)
        operations.head_logits(x, m, bias, 0.5, 3.0, ours)
        assert_near(ours, twin, 2**-8)


@orders(3, 1, usual=1)
def test_head(case: int, order: str) -> None:
    g = seeded(case)
    head, hidden, bias = matrix("Q8_0", 83, 64, case), normal(g, case, 64), normal(g, 83)
    for scale, softcap in ((1.0, 0.0), (0.5, 2.0)):
        twin, ours = nothing(case, 83), nothing(case, 83)
        PLAIN.head_logits(hidden, head, bias, scale, softcap, twin)
        kernels(order).head_logits(hidden, head, bias, scale, softcap, ours)
        assert_near(ours, twin)
        ids, best = torch.full((2, case), -7, dtype=torch.int32)
        PLAIN.head_argmax(hidden, head, bias, scale, softcap, ids)
        kernels(order).head_argmax(hidden, head, bias, scale, softcap, best)
        assert torch.equal(ids, best)


@pytest.mark.parametrize("order", ORDERS)
def test_the_best_id_of_ties_and_of_what_are_no_numbers(order: str) -> None:
    head, hidden, best = matrix("F32", 40, 32, 1), torch.ones(3, 32), torch.full((3,), -7, dtype=torch.int32)
    head.codes[:] = -1.0
    head.codes[[11, 29, 38]] = 2.0
    head.codes[5] = float("inf")
    hidden[0] = 0.0  # infinity times zero
    hidden[1] = -1.0
    head.codes[5, 1:] = 0.0
    kernels(order).head_argmax(hidden, head, None, 1.0, 0.0, best)
    assert best.tolist() == [-1, 0, 5]
    hidden[1:] = 1.0
    head.codes[5] = 0.0
    kernels(order).head_argmax(hidden, head, None, 1.0, 0.0, best)
    assert best.tolist() == [0, 11, 11]


@orders(("MXFP4", "swiglu_clamped", False), ("BF16", "silu", True), usual=1)
def test_experts(case: tuple[str, str, bool], order: str) -> None:
    name, act, on_input = case
    g = seeded(len(act))
    t, count, top_k, width, hidden = 3, 5, 2, 64, 32
    gate, up = (matrix(name, count * hidden, width, i) for i in (1, 2))
    down = matrix(name, count * width, hidden, 3)
    chosen = torch.stack([torch.randperm(count, generator=g)[:top_k] for _ in range(t)]).int()
    weights, x = torch.rand(t, top_k, generator=g), normal(g, t, width)
    biases, bias = (normal(g, count, hidden), normal(g, count, hidden)), normal(g, count, width)
    times = weights if on_input else None
    twin, ours = nothing(t, top_k, hidden), nothing(t, top_k, hidden)
    PLAIN.experts_gated(x, chosen, times, gate, up, biases, act, twin)  # type: ignore[arg-type]
    kernels(order).experts_gated(x, chosen, times, gate, up, biases, act, ours)  # type: ignore[arg-type]
    assert_near(ours, twin)
    twin_sum, sums = nothing(t, width), nothing(t, width)
    PLAIN.experts_down(twin, chosen, None if on_input else weights, down, bias, twin_sum)
    kernels(order).experts_down(twin, chosen, None if on_input else weights, down, bias, sums)
    assert_near(sums, twin_sum)


def turning(dims: int, interleaved: bool) -> Rotation:
    angles = torch.arange(200)[:, None] * 100.0 ** -(torch.arange(0, dims, 2) / dims)
    return Rotation(torch.cat([angles.cos(), angles.sin()], dim=1), dims, interleaved)


QKV = {
    "plain": QkvForm(4, 2, 64, 64, "norm_first", rotation=turning(64, False)),
    "normed": QkvForm(4, 2, 32, 32, "norm_first", NormForm(1e-6, torch.rand(32) + 0.5), NormForm(1e-6, torch.rand(32)),
                      rotation=turning(16, True)),
    "all": QkvForm(2, 1, 48, 80, "rope_first", NormForm(1e-5, torch.rand(48)), NormForm(1e-5, torch.rand(48)),
                   NormForm(1e-6, None), turning(48, False), QueryTemperature(0.1, 7, 2), gated=True),
    "keys_are_values": QkvForm(2, 1, 96, 96, "norm_first", k_norm=NormForm(1e-5, torch.rand(96)), keys_are_values=True),
    "shared": QkvForm(3, 1, 64, 64, "norm_first", rotation=turning(64, False), has_kv=False),
}  # fmt: skip


STEPS = {"f32": 1e-5, "bf16": 2**-8, "fp8": 2**-4, "int8": 2**-7, "int4": 0.2, "nvfp4": 0.2}
"""Of a type of cache, relative to the largest number."""


def assert_same_cache(ours: Tensor, twin: Tensor, within: float) -> None:
    """Bytes that differ are few: a sum in another order may round a number the other way."""
    assert int((ours != twin).sum()) <= within * ours.numel(), int((ours != twin).sum())


QKV_CASES = [(name, dtype) for dtype in ("bf16", "int8", "fp8", "f32") for name in QKV]
QKV_CASES += [(name, dtype) for dtype in ("int4", "nvfp4") for name in QKV if name != "all"]  # whole groups alone


@orders(*QKV_CASES, usual=2 * len(QKV))
def test_qkv_epilogue(case: tuple[str, str], order: str) -> None:
    name, dtype = case
    form = QKV[name]
    step = rows([17, 31, 0], [2, 1, 0], 2, 12, 5)
    qkv = normal(seeded(9), 6, form.width + 32)[:, 8 : 8 + form.width]
    kv = cache(dtype, 12, form.n_kv_heads, form.head_size, form.value_size, 4) if form.has_kv else None
    results = []
    for operations in (PLAIN, kernels(order)):
        pool = None if kv is None else replace(kv, pool=kv.pool.clone())
        q = torch.zeros(6, form.n_heads, form.head_size)
        gate = torch.zeros_like(q) if form.gated else None
        operations.qkv_epilogue(qkv, form, step, pool, q, gate)
        results.append((q, gate, pool))
    (twin, twin_gate, twin_kv), (ours, our_gate, our_kv) = results
    used = [0, 1, 2]
    assert_near(ours[used], twin[used])
    if twin_gate is not None and our_gate is not None:
        assert torch.equal(our_gate[used], twin_gate[used])
    if kv is not None and our_kv is not None and twin_kv is not None:
        assert not torch.equal(kv.pool[:-1], our_kv.pool[:-1])
        assert torch.equal(our_kv.pool[-1], kv.pool[-1])  # padding is left out, the scratch block as it was
        for part in (0, 1):
            blocks = torch.arange(12, dtype=torch.int32)[None]
            made = [torch.zeros(1, form.n_kv_heads, 192, kv.parts[part].size) for _ in range(2)]
            PLAIN.gather_kv(our_kv, part, blocks, made[0])
            PLAIN.gather_kv(twin_kv, part, blocks, made[1])
            assert_near(made[0], made[1], within=STEPS[dtype])
        assert_same_cache(our_kv.pool[:-1], twin_kv.pool[:-1], 0.02 if dtype == "f32" else 2e-3)


@orders(
    ("bf16", 64, 8, 2, {}),
    ("int8", 128, 4, 4, {"window": 20}),
    ("fp8", 96, 4, 1, {"softcap": 5.0}),
    ("f32", 32, 2, 1, {"sinks": torch.tensor([0.5, -1.0])}),
    ("bf16", 256, 2, 2, {"chunk": 32}),
    ("int8", 48, 6, 1, {"window": 5}),
    ("int4", 64, 4, 2, {}),
    ("nvfp4", 128, 4, 1, {"window": 40}),
    ("int4", 256, 2, 1, {}),
    ("nvfp4", 32, 2, 2, {}),
    usual=3,
)
def test_decode_attention(case: tuple[str, int, int, int, dict[str, object]], order: str) -> None:
    dtype, head_size, n_heads, n_kv_heads, more = case
    kv = cache(dtype, 40, n_kv_heads, head_size, head_size, 7)
    form = AttentionForm(n_heads, n_kv_heads, head_size**-0.5, **more)  # type: ignore[arg-type]
    width = 1 if head_size == 256 else 3
    step = rows([130, 0, 63, 0], [min(width, 2), 1, width, 0], width, 40, 8, spare_columns=3)
    if form.window:
        step.tables[0][0, :3] = -1
    g = seeded(3)
    q = normal(g, 4 * width, n_heads, head_size)
    gate = normal(g, 4 * width, n_heads, head_size) if dtype == "fp8" else None
    twin, ours = nothing(*q.shape), nothing(*q.shape)
    PLAIN.decode_attention(q, step, kv, form, gate, twin)
    kernels(order, split=64).decode_attention(q, step, kv, form, gate, ours)
    used = [r * width + j for r, n in enumerate(step.counts.tolist()) for j in range(n)]
    assert_near(ours[used], twin[used], within=2e-5)


def alone(step: Rows, row: int, columns: int) -> Rows:
    """One row of a rectangle, with a table of so many columns."""
    own = slice(row, row + 1)
    table = step.tables[0][own, :columns].contiguous()
    return Rows(1, step.width, step.slots[own], step.starts[own], step.counts[own], (table,))


@pytest.mark.parametrize("width", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_attention_of_a_row_depends_on_it_alone(width: int) -> None:
    """Bit by bit: not on who shares the step, nor on how long the tables of others are."""
    kv, form = cache("bf16", 60, 2, 64, 64, 7), AttentionForm(8, 2, 64**-0.5)
    step = rows([130, 0, 63], [width, 1, width], width, 60, 8, spare_columns=5)
    q = normal(seeded(3), 3 * width, 8, 64)
    operation = "decode_attention" if width <= 8 else "prefill_attention"
    together = nothing(*q.shape)
    getattr(kernels(split=64), operation)(q, step, kv, form, None, together)
    for row, n in enumerate(step.counts.tolist()):
        columns = (int(step.starts[row]) + width + 15) // 16
        by_itself, one, own = nothing(width, 8, 64), alone(step, row, columns), q[row * width :][:width]
        getattr(kernels("lowest", split=64), operation)(own, one, kv, form, None, by_itself)
        assert torch.equal(by_itself[:n], together[row * width :][:n])


@orders("Q4_K", "BF16", "MXFP4", usual=1)
def test_embed(case: str, order: str) -> None:
    table = matrix(case, 20, 64, 5)
    step = rows([0, 4, 9], [2, 2, 1], 2, 10, 1)
    slots = SlotState(torch.tensor([3, -1, 7, 0], dtype=torch.int32), torch.zeros(4, 8, dtype=torch.int32))
    ids = torch.tensor([5, -1, 19, -1, -1, 0], dtype=torch.int32)
    twin, ours = nothing(6, 64), nothing(6, 64)
    PLAIN.embed(ids, step, slots, table, 1.5, twin)
    kernels(order).embed(ids, step, slots, table, 1.5, ours)
    assert torch.equal(ours, twin)


@pytest.mark.parametrize("order", ORDERS)
def test_elementwise(order: str) -> None:
    g = seeded(4)
    for opened in (None, normal(g, 3, 1)):
        stream, delta = normal(g, 3, 300), normal(g, 3, 304)[:, 2:302]
        twin, ours = stream.clone(), stream.clone()
        PLAIN.add(twin, delta, 0.5, opened)
        kernels(order).add(ours, delta, 0.5, opened)
        assert_near(ours, twin, 1e-6)
    x = 3 * normal(g, 2, 70)
    for act, times in zip(ACTIVATIONS[:4], (None, x.flip(0), None, x.flip(1))):
        twin, ours = nothing(2, 70), nothing(2, 70)
        PLAIN.activate(x, act, times, twin)  # type: ignore[arg-type]
        kernels(order).activate(x, act, times, ours)  # type: ignore[arg-type]
        assert_near(ours, twin)


ROUTERS = {
    "softmax": RouterForm(40, 4, "softmax", True, 1.0),
    "ties": RouterForm(9, 3, "softmax", False, 2.0, expert_scale=torch.rand(9)),
    "sigmoid": RouterForm(32, 6, "sigmoid", True, 2.5, torch.randn(32, generator=seeded(1)), None, 4, 2, "best_two"),
    "groups": RouterForm(16, 2, "softmax", False, 1.0, None, None, 8, 3, "best"),
}


@orders(*ROUTERS)
def test_route(case: str, order: str) -> None:
    form, g = ROUTERS[case], seeded(6)
    logits = normal(g, 5, form.count)
    if case == "ties":
        logits = logits.round()
    made = []
    for operations in (PLAIN, kernels(order)):
        chosen = torch.full((5, form.top_k), -7, dtype=torch.int32)
        weights = nothing(5, form.top_k)
        operations.route(logits, form, chosen, weights)
        made.append((chosen, weights))
    assert torch.equal(made[0][0], made[1][0])
    assert_near(made[1][1], made[0][1])


@pytest.mark.parametrize("order", ORDERS)
def test_copy_blocks(order: str) -> None:
    pool = torch.randint(0, 256, (9, 4128), generator=seeded(2), dtype=torch.uint8)
    pairs = torch.tensor([[0, 1], [1, 2], [2, 0], [5, 8]], dtype=torch.int32)
    twin, ours = pool.clone(), pool.clone()
    PLAIN.copy_blocks(twin, pairs)
    kernels(order).copy_blocks(ours, pairs)
    assert torch.equal(ours, twin) and not torch.equal(ours, pool)


@orders(
    ("bf16", 64, 4, 2, {}),
    ("int8", 128, 2, 1, {"window": 20}),
    ("fp8", 96, 2, 2, {"softcap": 5.0, "sinks": torch.tensor([0.5, -1.0])}),
    ("bf16", 256, 1, 1, {"chunk": 32}),
    ("int4", 64, 4, 2, {}),
    ("nvfp4", 128, 2, 1, {"window": 20}),
    usual=2,
)
def test_prefill_attention(case: tuple[str, int, int, int, dict[str, object]], order: str) -> None:
    """Rounded queries and weights: the bound is that of bfloat16. Under both ways of adding up products."""
    dtype, head_size, n_heads, n_kv_heads, more = case
    kv = cache(dtype, 40, n_kv_heads, head_size, head_size, 7)
    form = AttentionForm(n_heads, n_kv_heads, head_size**-0.5, **more)  # type: ignore[arg-type]
    width = 40
    step = rows([70, 0, 0], [33, 40, 0], width, 40, 8, spare_columns=2)
    if form.window:
        step.tables[0][0, :3] = -1
    g = seeded(3)
    q = normal(g, 3 * width, n_heads, head_size)
    gate = normal(g, 3 * width, n_heads, head_size) if dtype == "fp8" else None
    used = [r * width + j for r, n in enumerate(step.counts.tolist()) for j in range(n)]
    twin = nothing(*q.shape)
    PLAIN.prefill_attention(q, step, kv, form, gate, twin)
    for sums in ("exact", "truncated"):
        ours, emulator = nothing(*q.shape), Emulator(order=order, sums=sums)  # type: ignore[arg-type]
        KernelOperations(PLAIN, emulator, Scratch(torch.device("cpu"))).prefill_attention(q, step, kv, form, gate, ours)
        assert emulator.n_launches == 1
        assert_near(ours[used], twin[used], within=2**-8)
