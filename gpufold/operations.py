"""What the operations are: one row of a table for each, and the one door to their kernel variants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from math import prod
from operator import mul

from gpufold import calls, cpu
from gpufold.calls import Call, OperationName, Unsupported
from gpufold.cpu import averages, placing
from gpufold.elements import check_dtype
from gpufold.given import word
from gpufold.gpu import choice
from gpufold.gpu.parameters import offset_bits
from gpufold.gpu.plan import H200, Device, Operand, Plan, Preferences, Problem, Variant
from gpufold.gpu.variants import (
    add_blocks,
    average,
    batch_to_space,
    blockwise,
    col2im,
    im2col,
    space_to_batch,
    take_blocks,
)


@dataclass(frozen=True)
class Operation:
    """What there is to know of an operation: a public function of the same name."""

    data: str
    """The name of the argument that holds the elements."""
    describe: Callable[..., Call]
    """Checks the arguments of a call and describes it."""
    on_cpu: Callable[..., None]
    """Computes a call on NumPy arrays: (call, data, result, weights), then positions and weight_out if it has them."""
    variants: Mapping[str, Variant]
    """The kernel variants by name, each of which plans a problem or raises Unsupported."""
    prefer: Preferences
    """Yields the variants that are predicted to be fast."""
    arrays: tuple[str, ...] = ()
    """The arrays that follow the first argument of a call, by the names of their arguments."""


OPERATIONS = {
    "col2im": Operation("data", calls.col2im, cpu.col2im, col2im.VARIANTS, choice.of_col2im),
    "im2col": Operation("image", calls.im2col, cpu.im2col, im2col.VARIANTS, choice.of_im2col),
    "batch_to_space": Operation(
        "data", calls.batch_to_space, cpu.batch_to_space, batch_to_space.VARIANTS, choice.of_batch_to_space
    ),
    "space_to_batch": Operation(
        "data", calls.space_to_batch, cpu.space_to_batch, space_to_batch.VARIANTS, choice.of_space_to_batch
    ),
    "blocks_to_array": Operation(
        "blocks", calls.blocks_to_array, cpu.blocks_to_array, blockwise.TO_ARRAY, choice.of_blocks_to_array
    ),
    "array_to_blocks": Operation(
        "array", calls.array_to_blocks, cpu.array_to_blocks, blockwise.TO_BLOCKS, choice.of_array_to_blocks
    ),
    "add_blocks": Operation(
        "blocks",
        calls.add_blocks,
        placing.add_blocks,
        add_blocks.VARIANTS,
        choice.of_add_blocks,
        arrays=("blocks", "positions"),
    ),
    "take_blocks": Operation(
        "array",
        calls.take_blocks,
        placing.take_blocks,
        take_blocks.VARIANTS,
        choice.of_take_blocks,
        arrays=("positions",),
    ),
    "average": Operation(
        "numerator", calls.average, averages.average_by_weights, average.VARIANTS, choice.of_average, arrays=("weight",)
    ),
}


def variants(operation: OperationName) -> tuple[str, ...]:
    """Return the names of an operation's kernel variants, the values that `variant` takes besides "auto".

    >>> "gather" in variants("col2im")
    True
    """
    return tuple(OPERATIONS[word("variants", "operation", operation, tuple(OPERATIONS))].variants)


def check_name(call: Call) -> None:
    """Raise unless the call's variant is "auto" or a kernel of the operation."""
    names = OPERATIONS[call.operation].variants
    if call.variant != "auto" and call.variant not in names:
        raise ValueError(f"{call.operation}: variant must be auto or one of {', '.join(names)}, got {call.variant!r}")


def check_variant(call: Call, on_cpu: bool, kind: str = "numpy.ndarray", moved: str = "cupy.asarray({})") -> None:
    """Raise unless the variant is "auto", or a kernel of the operation and the arrays are a GPU's."""
    if call.variant == "auto":
        return
    check_name(call)
    if on_cpu:
        name = OPERATIONS[call.operation].data
        raise Unsupported(
            f"{call.operation}: variant {call.variant!r} is a GPU kernel, but {name} is a {kind}; "
            f"pass {moved.format(name)}, or variant='auto'"
        )


@lru_cache(maxsize=4096)
def choose(
    call: Call, input: Operand, output: Operand, device: Device = H200, weight_out: Operand | None = None
) -> Plan:
    """Plan a call on arrays with at least one element; a variant that is named must serve it, else Unsupported."""
    check_name(call)
    check_dtype(call.operation, OPERATIONS[call.operation].data, call.dtype)
    problem = Problem(call, input, output, device, weight_out)
    operands = (input, output) if weight_out is None else (input, output, weight_out)
    for operand in operands:  # strides that no element is away by are passed to kernels too
        offset_bits(call.operation, sum(map(mul, operand.shape, map(abs, operand.strides))))
    if call.variant == "auto":
        return _plan_of_any(problem)
    return OPERATIONS[call.operation].variants[call.variant](problem)


def _plan_of_any(problem: Problem) -> Plan:
    """Plan the first preferred variant that serves a problem, else the first of the table that does.

    Where the order of addition matters, that is one that keeps it.
    """
    name_of_operation = problem.call.operation
    operation = OPERATIONS[name_of_operation]
    refusals: dict[str, str] = {}
    others = ((name, None) for name in operation.variants)
    for name, why in chain(operation.prefer(problem), others):
        if name in refusals:
            continue
        try:
            plan = operation.variants[name](problem)
        except Unsupported as unsupported:
            refusals[name] = str(unsupported).removeprefix(f"{name_of_operation}: ")
            continue
        if plan.scatters and not problem.any_order:
            refusals[name] = f"{name} adds in any order, where deterministic=True"
            continue
        if why is None:
            *_, why = refusals.values()
        return replace(plan, reason=f"{why}: {plan.reason}") if why else plan
    raise Unsupported(f"{name_of_operation}: no variant serves the call: {'; '.join(dict.fromkeys(refusals.values()))}")


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


def explain(
    call: Call, input: Operand, output: Operand, device: Device = H200, weight_out: Operand | None = None
) -> Explanation:
    """Plan a call and say why every other variant was not taken."""
    plan = choose(call, input, output, device, weight_out)
    alternatives = {}
    for name in OPERATIONS[call.operation].variants:
        if name == plan.variant:
            continue
        try:
            other = choose(call._replace(variant=name), input, output, device, weight_out)
        except Unsupported as unsupported:
            alternatives[name] = str(unsupported)
        else:
            alternatives[name] = f"would serve: {other.reason}"
    return Explanation(plan, alternatives, plan.bytes_moved / device.copy_bandwidth if device.copy_bandwidth else None)
