"""The kernel variants of every operation, and the plans of those that can serve a call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from operator import mul

from gpufold.calls import Call, Unsupported
from gpufold.gpu import choice
from gpufold.gpu.parameters import offset_bits
from gpufold.gpu.plan import H200, Device, Operand, Plan, Preferences, Problem, Variant
from gpufold.gpu.variants import col2im, im2col, positions, space
from gpufold.gpu.variants.average import elementwise
from gpufold.gpu.variants.binned import binned
from gpufold.gpu.variants.columns import as_columns
from gpufold.gpu.variants.runs import runs, staged
from gpufold.gpu.variants.whole_blocks import gather_blocks


def _by_name(*variants: Variant) -> Mapping[str, Variant]:
    return {variant.__name__: variant for variant in variants}


_COL2IM = _by_name(col2im.gather, gather_blocks, col2im.gather_pixels, col2im.atomic)
_IM2COL = _by_name(im2col.per_block, im2col.packed, runs, staged, im2col.taps)

VARIANTS: Mapping[str, Mapping[str, Variant]] = {
    "col2im": _COL2IM,
    "im2col": _IM2COL,
    "batch_to_space": _by_name(space.packed, space.index_map),
    "space_to_batch": _by_name(space.per_block),
    "blocks_to_array": _COL2IM,
    "array_to_blocks": _IM2COL,
    "add_blocks": _by_name(positions.output_driven, binned, positions.atomic),
    "take_blocks": _by_name(positions.per_element),
    "average": _by_name(elementwise),
}
"""Variants by operation and name; each plans a problem or raises Unsupported."""

RULES: Mapping[str, Preferences] = {
    "col2im": choice.of_col2im,
    "im2col": choice.of_im2col,
    "blocks_to_array": choice.of_col2im,
    "array_to_blocks": choice.of_im2col,
    "add_blocks": choice.of_add_blocks,
}
"""Heuristics of operations, before the order of the table."""


def _plans_by(variant: Variant, problem: Problem) -> tuple[Plan, ...]:
    """Return the plans of a variant, the heuristics' first, or raise Unsupported."""
    plans = variant(problem)
    return plans if isinstance(plans, tuple) else (plans,)


def candidates(problem: Problem, refusals: dict[str, str] | None = None) -> Iterator[Plan]:
    """Yield the plans that can serve a problem, preferred ones first; all are deterministic if the call asks for it.

    The others follow in the order of the table. A variant requested by name comes alone. Reasons why variants cannot
    serve are added to `refusals`, by name.
    """
    call, refused = problem.call, {} if refusals is None else refusals
    operands = problem.input, problem.output, problem.weight_out
    table, done, problem = VARIANTS[call.operation], set[str](), as_columns(problem)
    try:
        for operand in filter(None, operands):  # strides of axes of length 1 are passed to kernels too
            offset_bits(sum(map(mul, operand.shape, map(abs, operand.strides))))
        if call.variant != "auto":
            yield from _plans_by(table[call.variant], problem)
            return
    except Unsupported as unsupported:
        raise Unsupported(f"{call.operation}: {unsupported}") from None
    preferred = RULES[call.operation](problem) if call.operation in RULES else ()
    for name, why in chain(preferred, ((name, None) for name in table)):
        if name in done:
            continue
        done.add(name)
        try:
            plans = _plans_by(table[name], problem)
        except Unsupported as unsupported:
            refused[name] = str(unsupported)
            continue
        if plans[0].atomic_output and not problem.any_order:
            refused[name] = f"{name} adds in any order, where deterministic=True"
            continue
        if why is None and 0 < len(refused) == len(done) - 1:  # no earlier one can serve
            *_, why = refused.values()
        yield from (replace(plan, reason=f"{why}: {plan.reason}") for plan in plans) if why else plans


@lru_cache(maxsize=1024)
def choose(
    call: Call, input: Operand, output: Operand, device: Device = H200, weight_out: Operand | None = None
) -> Plan:
    """Plan a call by heuristics alone; raise Unsupported if no variant, or not the requested one, can serve it."""
    refusals: dict[str, str] = {}
    for plan in candidates(Problem(call, input, output, device, weight_out), refusals):
        return plan
    raise Unsupported(f"{call.operation}: no variant serves the call: {'; '.join(dict.fromkeys(refusals.values()))}")
