"""Rotary positions as a GGUF header states them."""

from __future__ import annotations

from imp_server.core import InvalidModel, UnsupportedModel
from imp_server.models.hyperparameters import Hyperparameters
from imp_server.models.rotation import Rope, RopeScaling, RopeStyle, yarn_magnitude
from imp_server.weights.dequantise import dequantise
from imp_server.weights.gguf import GgufFile


def rope_of_gguf(
    keys: Hyperparameters, file: GgufFile, head_size: int, style: RopeStyle, turning: int, served: int = 0
) -> Rope:
    """`turning`: dimensions of a head that turn where the header doesn't say; `served`: positions that are, 0 = the
    model's own. Raises InvalidModel for a value of the wrong kind, UnsupportedModel for an unknown scaling."""
    dims = keys.integer("rope.dimension_count", turning, low=2, high=head_size)
    factors = _factors(file, "rope_freqs", dims)
    # Files of before these keys say `scale_linear`; a factor without a type is linear.
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0.0)) or 1.0
    kind = keys.text("rope.scaling.type", "linear")
    if kind == "longrope" or "rope_factors_long.weight" in file.tensors:  # Phi's converter doesn't say the kind
        return Rope(style, keys.number("rope.freq_base", 10000.0), dims, _longrope(keys, file, dims, served))
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModel(f"{keys.named('rope.scaling.type')} is {kind!r}, not known for this family")
    if factor <= 0:
        raise keys.wrong("rope.scaling.factor", factor, "a positive number")
    if kind == "yarn" and keys.number("rope.scaling.yarn_ext_factor", 1.0) != 1.0:
        raise UnsupportedModel(f"{keys.named('rope.scaling.yarn_ext_factor')} isn't supported")
    attention_factor = keys.number("rope.scaling.attn_factor", 1.0)
    if kind == "yarn":
        # The checkpoint's whole factor under its newer name; converters of before it wrote that under the older one.
        stated = keys.number("rope.scaling.yarn_attn_factor", 1.0)
        whole = attention_factor if stated == 1.0 else attention_factor * stated
        attention_factor = whole / yarn_magnitude(factor) if whole != 1.0 else 1.0
    if kind == "yarn" and (share := keys.number("rope.scaling.yarn_log_multiplier", 0.0)):
        attention_factor /= yarn_magnitude(factor, share)
    context = keys.integer("context_length", high=1 << 30)
    scaling = RopeScaling(
        kind="none" if factor == 1.0 else kind,  # type: ignore[arg-type]
        factor=factor,
        original_context=keys.integer("rope.scaling.original_context_length", 0, low=0, high=1 << 30) or context,
        attention_factor=attention_factor,
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
        frequency_factors=factors,
    )
    return Rope(style, keys.number("rope.freq_base", 10000.0), dims, scaling)


def _longrope(keys: Hyperparameters, file: GgufFile, dims: int, served: int) -> RopeScaling:
    """The factors are chosen once, by the context that is served."""
    context = keys.integer("context_length", high=1 << 30)
    original = keys.integer("rope.scaling.original_context_length", context, high=1 << 30)
    factors = [_factors(file, f"rope_factors_{length}", dims) for length in ("short", "long")]
    if not all(factors):
        raise UnsupportedModel(f"{keys.named('rope.scaling.type')} is 'longrope', and the file has no factors")
    return RopeScaling(
        kind="longrope",
        factor=context / original,
        original_context=original,
        attention_factor=keys.number("rope.scaling.attn_factor", 1.0),
        frequency_factors=factors[min(context, served or context) > original],
    )


def _factors(file: GgufFile, stem: str, dims: int) -> tuple[float, ...]:
    info = file.tensors.get(f"{stem}.weight")
    if info is None:
        return ()
    factors = tuple(dequantise(info.type, file.data(info.name)).tolist())
    if len(factors) != dims // 2 or not all(f > 0 for f in factors):
        raise InvalidModel(f"{file.path.name}: '{stem}.weight' must hold {dims // 2} positive numbers")
    return factors
