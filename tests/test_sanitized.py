"""Every kernel variant under AddressSanitizer and UndefinedBehaviorSanitizer, and in shuffled orders of threads."""

from __future__ import annotations

from contextlib import suppress
from math import prod

import numpy as np
import pytest
from cases import CASES, SPACE_CASES, assert_same_bits, values
from moves import ONE_THREAD, operand

import gpufold
from bench import hostcuda
from gpufold.calls import Call, Unsupported
from gpufold.geometry import batch_to_space_geometry, col2im_geometry
from gpufold.gpu.plan import H200
from gpufold.gpu.registry import candidates, problem_of
from gpufold.operations import variants

pytestmark = [pytest.mark.hostcuda, pytest.mark.all]

NAMES = (
    "bug-3d-columns-with-dilated-kernel",
    "bug-uncovered-pixels-never-written",
    "stride-two-asymmetric",
    "stride-equals-kernel-padded",
    "stride-seventeen",
    "dilation-zero-on-one-axis",
    "blocks-wholly-in-padding",
    "map-7x7",
    "audio-unbatched-odd",
    "rank-4",
)
SLIDING = [case for case in CASES if case.name in NAMES]
SPACE = [case for case in SPACE_CASES if prod(case.space_shape)]


def problems():
    """Yield the operation, the geometry, the input's and the result's shapes, and the gpufold call."""
    for case in SLIDING:
        geometry = col2im_geometry(case.columns_shape, case.output_size, case.kernel_size, **case.arguments)
        fold = (case.output_size, case.kernel_size), case.arguments
        yield case.name, "col2im", geometry, case.columns_shape, case.image_shape, fold
        yield case.name, "im2col", geometry, case.image_shape, case.columns_shape, ((case.kernel_size,), case.arguments)
    for case in SPACE:
        geometry = batch_to_space_geometry(case.batch_shape, case.block_shape, case.crops_begin, case.crops_end)
        call = (case.block_shape, case.crops_begin, case.crops_end), {}
        yield case.name, "batch_to_space", geometry, case.batch_shape, case.space_shape, call
        yield case.name, "space_to_batch", geometry, case.space_shape, case.batch_shape, call


def each():
    for name, operation, *rest in problems():
        for variant in variants(operation):
            yield pytest.param(operation, variant, *rest, id=f"{operation}-{variant}-{name}")


@pytest.mark.parametrize("mode", ["sanitized", "shuffled"])
@pytest.mark.parametrize(("operation", "variant", "geometry", "input_shape", "output_shape", "call"), list(each()))
def test_every_variant_stays_inside_its_arrays(operation, variant, geometry, input_shape, output_shape, call, mode):
    arguments, options = call
    for number, (dtype, device) in enumerate(((np.int32, H200), (np.complex64, ONE_THREAD))):
        data = values(input_shape, dtype, number)
        want = getattr(gpufold, operation)(data, *arguments, **options)
        result = np.empty(output_shape, dtype)
        described = Call(operation, geometry, data.dtype.name, variant=variant)
        with suppress(Unsupported):
            for plan in candidates(problem_of(described, operand(data), operand(result), device)):
                hostcuda.run(plan, data, result, mode=mode, seed=number)
                if variant == "atomic" and dtype == np.complex64:
                    np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-2)
                else:
                    assert_same_bits(result, want, plan)
