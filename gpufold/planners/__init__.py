"""The kernel variants of each operation, and the one place that chooses among them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from math import prod
from operator import mul

from gpufold.geometry import Geometry
from gpufold.plan import (
    ELEMENT_TYPES,
    H200,
    PLAIN,
    Device,
    Fusion,
    Operand,
    Plan,
    Preferences,
    Problem,
    Unsupported,
    Variant,
    offset_bits,
)
from gpufold.planners import blocks, col2im, im2col, positions, space

VARIANTS: dict[str, dict[str, Variant]] = {
    "col2im": col2im.VARIANTS,
    "im2col": im2col.VARIANTS,
    "batch_to_space": space.BATCH_TO_SPACE,
    "space_to_batch": space.SPACE_TO_BATCH,
    "blocks_to_array": blocks.BLOCKS_TO_ARRAY,
    "array_to_blocks": blocks.ARRAY_TO_BLOCKS,
    "add_blocks": positions.VARIANTS,
}

PREFERENCES: dict[str, Preferences] = {
    "col2im": col2im.prefer,
    "im2col": im2col.prefer,
    "batch_to_space": space.prefer_for_batch_to_space,
    "space_to_batch": space.prefer_for_space_to_batch,
    "blocks_to_array": blocks.prefer_for_blocks_to_array,
    "array_to_blocks": blocks.prefer_for_array_to_blocks,
    "add_blocks": positions.prefer,
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """The plan a call would run, and what became of every other variant."""

    plan: Plan
    alternatives: dict[str, str]
    """Variant name to the reason why it was not taken."""
    predicted_seconds: float | None
    """For the bytes alone, at the device's copy bandwidth: a floor, not a measurement. None where that is unknown."""

    def __str__(self) -> str:
        plan = self.plan
        defines = " ".join(f"{name}={value}" for name, value in plan.defines)
        seconds = self.predicted_seconds
        prediction = "" if seconds is None else f", in {seconds * 1e6:,.1f} us or more by prediction"
        return "\n".join(
            [
                f"{plan.operation}: {plan.variant}, because {plan.reason}",
                f"  {plan.source}: {prod(plan.grid)} x {prod(plan.block)} threads, {defines}",
                f"  {plan.bytes_moved:,} bytes{prediction}",
                *(f"  not {name}: {reason}" for name, reason in self.alternatives.items()),
            ]
        )


def variants(operation: str) -> tuple[str, ...]:
    """Name the kernel variants of an operation, the values that `variant` takes besides "auto".

    >>> "gather" in variants("col2im")
    True
    """
    if operation not in VARIANTS:
        raise ValueError(f"variants: operation must be one of {', '.join(VARIANTS)}, got {operation!r}")
    return tuple(VARIANTS[operation])


@lru_cache(maxsize=4096)
def choose(
    operation: str,
    geometry: Geometry,
    dtype: str,
    input: Operand,
    output: Operand,
    device: Device = H200,
    variant: str = "auto",
    deterministic: bool = True,
    fusion: Fusion = PLAIN,
) -> Plan:
    """Plan a call on arrays with at least one element; a variant that is named must serve it, else Unsupported."""
    names = variants(operation)
    problem = Problem(geometry, dtype, input, output, device, deterministic, fusion)
    for operand in (input, output):  # strides that no element is away by are passed to kernels too
        offset_bits(operation, sum(map(mul, operand.shape, map(abs, operand.strides))))
    if variant == "auto":
        return _plan_of_any(operation, problem)
    if variant not in names:
        raise ValueError(f"{operation}: variant must be auto or one of {', '.join(names)}, got {variant!r}")
    return VARIANTS[operation][variant](problem)


def _plan_of_any(operation: str, problem: Problem) -> Plan:
    """Plan the first preferred variant that serves a problem, else the first of the table that does.

    Where the order of addition matters, that is one that keeps it.
    """
    refusals: dict[str, str] = {}
    any_order = ELEMENT_TYPES[problem.dtype].exact or not problem.deterministic
    others = ((name, None) for name in VARIANTS[operation])
    for name, why in chain(PREFERENCES[operation](problem), others):
        if name in refusals:
            continue
        try:
            plan = VARIANTS[operation][name](problem)
        except Unsupported as unsupported:
            refusals[name] = str(unsupported).removeprefix(f"{operation}: ")
            continue
        if plan.scatters and not any_order:
            refusals[name] = f"{name} adds in any order, where deterministic=True"
            continue
        if why is None:
            *_, why = refusals.values()
        return replace(plan, reason=f"{why}: {plan.reason}") if why else plan
    raise Unsupported(f"{operation}: no variant serves the call: {'; '.join(dict.fromkeys(refusals.values()))}")


def explain(
    operation: str,
    geometry: Geometry,
    dtype: str,
    input: Operand,
    output: Operand,
    device: Device = H200,
    variant: str = "auto",
    deterministic: bool = True,
    fusion: Fusion = PLAIN,
) -> Explanation:
    """Plan a call and say why every other variant was not taken."""
    plan = choose(operation, geometry, dtype, input, output, device, variant, deterministic, fusion)
    alternatives = {}
    for name in variants(operation):
        if name == plan.variant:
            continue
        try:
            other = choose(operation, geometry, dtype, input, output, device, name, deterministic, fusion)
        except Unsupported as unsupported:
            alternatives[name] = str(unsupported)
        else:
            alternatives[name] = f"would serve: {other.reason}"
    return Explanation(plan, alternatives, plan.bytes_moved / device.copy_bandwidth if device.copy_bandwidth else None)
