"""Deliberate faults, each of which a named test must notice: `python tests/faults.py`, or `-k words` for some of them.

Every fault is one replacement in a temporary copy of the checkout, where that test then runs and must turn red, while
it passes without the fault. Exit status 1 where a fault survives.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from queue import Queue

from mutants import Mutant, draw, ptx
from reach import Reach

from bench.hostcuda.cubin import CompileError

CHECKOUT = Path(__file__).parents[1]
VARIANTS = "gpufold/gpu/variants"

COL2IM = "tests/test_col2im_kernels.py::test_"
IM2COL = "tests/test_im2col_kernels.py::test_"
SPACE = "tests/test_space_kernels.py::test_"
BLOCKS = "tests/test_blocks.py::test_"
ADD_BLOCKS = "tests/test_add_blocks.py::test_"
CROWDED = ADD_BLOCKS + "a_crowded_tile_has_its_blocks_in_order[everything-in-a-few-tiles-observed]"
OWN_TILE = ADD_BLOCKS + "each_tile_has_its_blocks_in_order"
TAKE_BLOCKS = "tests/test_take_blocks.py::test_"
FUSIONS = "tests/test_fusions.py::test_"
STITCHER = "tests/test_stitcher.py::test_"
DASK = "tests/test_dask.py::test_"
PLANNER_LAW = "tests/test_planner_law.py::test_"
FIGURES = "tests/test_figures.py::test_"
SOURCES = "tests/test_sources.py::test_"
NUMPY_PATH = "tests/test_operations.py::test_"
TORCH = "tests/test_torch.py::test_"
SMALL = "tests/test_torch_small.py::test_"
JAX = "tests/test_jax.py::test_"


@dataclass(frozen=True)
class Fault:
    name: str
    file: str
    old: str
    """Occurs once in the file."""
    new: str
    test: str

    def breaks(self, text: str) -> str:
        """Put the fault into the file's text."""
        count = text.count(self.old)
        if count != 1:
            raise LookupError(f"{self.name}: found {count} times in {self.file}, not once: {self.old!r}")
        return text.replace(self.old, self.new)


FAULTS = (
    # --- kernels: arithmetic
    Fault(
        "additions that flush denormals",
        "kernels/common.cuh",
        '    asm("add.rn.f32 %0, %1, %2;" : "=f"(result) : "f"(sum), "f"(value));',
        "    result = sum + value;",
        FIGURES + "machine_code_keeps_denormals[float32--sum-none]",
    ),
    Fault(
        "conversions that flush denormals",
        "kernels/common.cuh",
        '    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(number));',
        "    wide = number;",
        FIGURES + "machine_code_keeps_denormals[float64-float32-sum-none]",
    ),
    Fault(
        "a question about a pointer to Booleans, on which NVRTC fails",
        "kernels/common.cuh",
        """    const void* any = address; // NVRTC fails on the question below where it is of Booleans
    asm("" : "+l"(any));
    __builtin_assume(__isGlobal(any));
    address = static_cast<Element*>(const_cast<void*>(any));
""",
        """    asm("" : "+l"(address));
    __builtin_assume(__isGlobal(address));
""",
        FIGURES + "every_kernel_compiles_for_every_dtype[add_blocks_lists.cu]",
    ),
    Fault(
        "products that are fused with additions",
        "kernels/common.cuh",
        "    return __dmul_rn(a, b);",
        "    return a * b;",
        FIGURES + "machine_code_rounds_products_before_it_adds_them[float64]",
    ),
    # --- kernels: numbers past 32 bits
    Fault(
        "the taps of a row cut to 32 bits",
        f"{VARIANTS}/unfold.py",
        "    if kernel_width > INT32_MAX:\n",
        "    if kernel_width > 2 * INT32_MAX:\n",
        PLANNER_LAW + "what_is_compiled_in_lies_within_its_type",
    ),
    Fault(
        "the blocks of taps that do not exist taken for near ones",
        f"{VARIANTS}/sums.py",
        "max(tap_step(axis), block_step(axis))",
        "tap_step(axis)",
        COL2IM + "taps_and_blocks_may_be_far_apart[blocks-beside-far-taps-sanitized]",
    ),
    # --- kernels: inline PTX and annotations
    Fault(
        "a word zeroed in the register of its address",
        "kernels/common.cuh",
        """mov.b64 %0, %3; @p ld.global.nc.u64 %0, [%1];}"
        : "=&l"(word)""",
        """mov.b64 %0, %3; @p ld.global.nc.u64 %0, [%1];}"
        : "=l"(word)""",
        SOURCES + "outputs_of_inline_ptx_share_no_register_with_inputs_read_after_them[common.cuh]",
    ),
    Fault(
        "an annotation that nvcc ignores",
        "kernels/positions.cuh",
        "    TapWeight() = default;",
        "    __device__ TapWeight() = default;",
        SOURCES + "nvcc_warns_of_nothing_where_a_kernel_is_compiled_on_its_own[add_blocks_gather.cu-75]",
    ),
    # --- tensors
    Fault(
        "a gradient that forgets what a mean divides by",
        "gpufold/adjoints.py",
        "geometry, gradient = call.geometry, _divided(xp, call, gradient, window)",
        "geometry = call.geometry",
        TORCH + "gradients[col2im-mean-none]",
    ),
    Fault(
        "a divisor of zero that is not made safe first",
        "gpufold/adjoints.py",
        "xp.where(uncovered, 0.0, 1.0 / xp.where(uncovered, 1.0, divisor))",
        "1.0 / divisor",
        TORCH + "gradients[col2im-mean-with-gaps]",
    ),
    Fault(
        "an edge without the gradient of what lies outside of it",
        "gpufold/adjoints.py",
        "xp.concatenate((first + begin.sum(axis, keepdims=True), rest), axis)",
        "xp.concatenate((first, rest), axis)",
        TORCH + "gradients[take_blocks-edge]",
    ),
    Fault(
        "narrow blocks that are weighed and placed before they are widened",
        "gpufold/torch/rules.py",
        '        call, data = call._replace(source=""), data.to(getattr(torch, call.dtype))\n',
        '        call, data = call._replace(source=""), data\n',
        TORCH + "blocks_are_added_to_a_wider_tensor_as_if_converted_first[float32-float64]",
    ),
    Fault(
        "an addition in place that autograd does not see",
        "gpufold/torch/tensors.py",
        "    if not tensor.is_inference():\n        increment_version(tensor)\n",
        "    pass\n",
        TORCH + "autograd_sees_what_is_added_in_place",
    ),
    Fault(
        "a window whose gradient is of one block",
        "gpufold/adjoints.py",
        ".sum((0, 2)).reshape(shape)",
        ".sum(0)[..., 0].reshape(shape)",
        TORCH + "gradients[col2im-full]",
    ),
    Fault(
        "tangents that a guard does not see",
        "gpufold/torch/guards.py",
        "            and forward_ad._current_level < 0\n",
        "",
        "tests/test_torch_guards.py::test_tangents_and_transforms_are_seen_after_a_call_without[given]",
    ),
    Fault(
        "a result that may overlap itself",
        "gpufold/arrays.py",
        "        for axis, extent in enumerate(shape)\n        if extent > 1\n",
        "        for axis, extent in enumerate(shape)\n        if extent > 9\n",
        "tests/test_arrays.py::test_a_result_that_overlaps_itself_is_refused_with_nothing_written[col2im-numpy]",
    ),
    Fault(
        "pads of ONNX's Col2Im axis by axis",
        "gpufold/torch/exporting.py",
        '"pads": [*begins, *ends]}',
        '"pads": [*ends, *begins]}',
        "tests/test_torch_onnx.py::test_what_is_exported_computes_the_same[by trace-col2im]",
    ),
    Fault(
        "a trace that takes the answer for a constant",
        "gpufold/torch/tensors.py",
        "is_compiling() or _C._is_tracing() or",
        "is_compiling() or",
        "tests/test_torch_trace.py::test_a_trace_serves_other_sizes[False]",
    ),
    Fault(
        "what was seen under no_grad taken for what has no gradient",
        "gpufold/torch/guards.py",
        "any([tensor.requires_grad for tensor in tensors])",
        "False",
        "tests/test_torch_guards.py::test_gradients_are_recorded_after_a_call_without[given-add]",
    ),
    Fault(
        "a kernel for aligned memory launched on any",
        "gpufold/torch/tensors.py",
        "guards.kernel if guards is not None and aligned else None",
        "guards.kernel if guards is not None else None",
        "tests/test_torch_launch.py::test_a_repeated_call_runs_the_plan_of_its_own_alignment[2]",
    ),
    Fault(
        "a launch on CuPy's stream instead of torch's",
        "gpufold/gpu/launch.py",
        "(*pointers, self.parameters), 0, stream)",
        "(*pointers, self.parameters))",
        "tests/test_torch_launch.py::test_nothing_waits",
    ),
    Fault(
        "weights that kernels read as they came",
        "gpufold/torch/tensors.py",
        "    return tuple([ready_weights(each, WEIGHTS[call.dtype]) for each in axes])\n",
        "    return tuple(axes)\n",
        "tests/test_torch_launch.py::test_weights_are_made_ready_for_kernels[transposed-plain]",
    ),
    Fault(
        "sums in a wider dtype left to torch, which has none",
        "gpufold/torch/tensors.py",
        ' and call.variant == "auto" and not call.source',
        ' and call.variant == "auto"',
        SMALL + "what_torch_has_not_is_not_asked_of_it[sums in float64]",
    ),
    Fault(
        "small sums under a transform that torch records as its own",
        "gpufold/torch/tensors.py",
        "of_torch(call, data) if recorded and not transformed else None",
        "of_torch(call, data) if recorded else None",
        SMALL + "transforms_are_computed_here[vmap]",
    ),
    Fault(
        "small sums that torch computes unseen by a profiler",
        "gpufold/torch/tensors.py",
        "        with watched(call):\n            return guards.of_torch(data)\n",
        "        return guards.of_torch(data)\n",
        SMALL + "the_profiler_names_a_call_that_torch_computes",
    ),
    Fault(
        "gradients inside of a functionalize left to torch, which has no rule for them",
        "gpufold/torch/rules.py",
        "    of_level.forward = staticmethod(forward)  # torch's own has no rule for a functionalize outside\n",
        "",
        "tests/test_torch_tools.py::test_functionalize_of_transforms[col2im-grad]",
    ),
    Fault(
        "saved tensors of a transform that has ended",
        "gpufold/torch/rules.py",
        "inputs = [*map(alive, inputs)]",
        "inputs = [*inputs]",
        TORCH + "transforms_of_functions[col2im-full]",
    ),
    Fault(
        "tangents that operators do not have",
        "gpufold/torch/operators.py",
        'for key in ("Autograd", "FuncTorchDynamicLayerFrontMode"):',
        'for key in ("Autograd",):',
        TORCH + "transforms_compile[hessian-False]",
    ),
    Fault(
        "denormals that XLA's threads flush",
        "gpufold/jax/primitive.py",
        "with threads.usual_mode():",
        "if True:",
        JAX + "denormals_stay_as_numpy_has_them",
    ),
    Fault(
        "positions of 32 bits that a GPU reads as of 64",
        "gpufold/jax/primitive.py",
        "jnp.stack((positions, positions >> 31), -1)",
        "jnp.stack((positions, positions * 0), -1)",
        "tests/test_jax_gpu.py::test_positions_of_32_bits_are_read_as_of_64[take_blocks-False]",
    ),
    Fault(
        "tangents of a window that are added to what there is",
        "gpufold/jax/primitive.py",
        "into = None if out is None else jnp.zeros_like(out)",
        "into = out",
        JAX + "gradients_tangents_and_theirs_are_those_of_differences[add_blocks-full-float64]",
    ),
    Fault(
        "cotangents with torch's conjugate",
        "gpufold/jax/primitive.py",
        "paired=lambda array: array,",
        "paired=jnp.conj,",
        JAX + "gradients_tangents_and_theirs_are_those_of_differences[col2im-full-complex128]",
    ),
    # --- kernels: barriers
    Fault(
        "cells of another image stored in one run",
        "kernels/col2im_gather.cu",
        "tile.runs[0].planes == tile.runs[31].planes",
        "true",
        COL2IM + "cells_of_two_images_have_planes_of_their_own",
    ),
    Fault(
        "no barrier before parts of cells are stored",
        "kernels/col2im_gather.cu",
        "        __syncwarp();\n",
        "",
        COL2IM + "warps_wait_for_each_other_and_every_byte_is_written_once[audio-400-160-observed]",
    ),
    Fault(
        "pixels of the next cell stored with a part",
        "kernels/col2im_gather.cu",
        "clamped(min(p.size[last] - pixel[last], of_pixels ? Offset(part) : stride[last] - phase)),",
        "clamped(p.size[last] - pixel[last]),",
        COL2IM + "warps_wait_for_each_other_and_every_byte_is_written_once[staged-observed]",
    ),
    Fault(
        "a quotient that its reciprocal rounds",
        "kernels/common.cuh",
        "return multiply_add(left_over, reciprocal, estimate);",
        "return estimate;",
        COL2IM + "averages_are_rounded_once_wherever_they_lie[float32]",
    ),
    Fault(
        "numbers of any size multiplied by a reciprocal",
        "kernels/common.cuh",
        "return (bit_cast<unsigned>(number) << 1) == 0 || between_powers<60>(number);",
        "return true;",
        COL2IM + "averages_are_rounded_once_wherever_they_lie[float32]",
    ),
    Fault(
        "divisors of any size taken by their reciprocals",
        "kernels/common.cuh",
        "return between_powers<30>(divisor);",
        "return true;",
        COL2IM + "averages_are_rounded_once_wherever_they_lie[float32]",
    ),
    Fault(
        "a quick look at sums that lets extreme ones pass",
        "kernels/common.cuh",
        "return bit_cast<unsigned>(number) + (1u << 29);",
        "return ~0u;",
        COL2IM + "averages_are_rounded_once_wherever_they_lie[float32]",
    ),
    Fault(
        "sums that reciprocals do not divide right divided by them",
        "kernels/fusion.cuh",
        "right = right && multiplies(sums[plane][i]);",
        ";",
        COL2IM + "averages_are_rounded_once_wherever_they_lie[float32]",
    ),
    Fault(
        "no barrier before a thread completes a word that it shares",
        "kernels/packing.cuh",
        "        __syncwarp();\n        if (count > 0) {",
        "        if (count > 0) {",
        IM2COL + "packed_blocks_are_the_definition[threads-but-for-the-last-of-a-row-uint8-observed]",
    ),
    Fault(
        "no barrier before packed blocks are stored from a tile",
        "kernels/im2col_packed.cu",
        "    __syncwarp();\n    store_run<Blocks>(",
        "    store_run<Blocks>(",
        IM2COL + "packed_blocks_are_the_definition[threads-but-for-the-last-of-a-row-float32-observed]",
    ),
    Fault(
        "the last bytes of a warp whose parts are all whole not put into its tile",
        "kernels/packing.cuh",
        "        to[words] = __funnelshift_l(before, 0, shift);",
        "        to[words] = 0;",
        SPACE + "every_layout_is_the_definition[long-rows-of-an-odd-length-uint8-batch_to_space]",
    ),
    Fault(
        "parts of a warp taken for whole where some are shorter",
        "kernels/packing.cuh",
        "__all_sync(all_lanes, end - begin == 4 * Layout::words)",
        "__any_sync(all_lanes, end - begin == 4 * Layout::words)",
        SPACE + "every_layout_is_the_definition[long-rows-of-an-odd-length-uint8-batch_to_space]",
    ),
    Fault(
        "no barrier before whole pieces of rows are stored from a tile",
        "kernels/batch_to_space_packed.cu",
        "        __syncwarp();\n        WholeRun<",
        "        WholeRun<",
        SPACE + "lanes_in_any_order_give_the_same_and_never_race[nchw-6x6-batch_to_space]",
    ),
    Fault(
        "no barrier before pieces of rows are stored from a tile",
        "kernels/batch_to_space_packed.cu",
        "        __syncwarp();\n        store_run<",
        "        store_run<",
        SPACE + "lanes_in_any_order_give_the_same_and_never_race[nchw-4x4-batch_to_space]",
    ),
    Fault(
        "no barrier before staged taps are added",
        "kernels/col2im_gather_blocks.cu",
        "    __syncwarp();\n}\n\n// A lane's way",
        "}\n\n// A lane's way",
        BLOCKS + "threads_wait_for_each_other_and_stay_inside_the_arrays[dense-7x7-observed]",
    ),
    Fault(
        "no barrier before staged taps are overwritten",
        "kernels/col2im_gather_blocks.cu",
        "    __syncwarp(); // all lanes have read the last batch\n",
        "",
        BLOCKS + "threads_wait_for_each_other_and_stay_inside_the_arrays[dense-7x7-observed]",
    ),
    Fault(
        "no barrier before sums are added to",
        "kernels/col2im_gather_blocks.cu",
        "        __syncwarp(); // all sums",
        "        // all sums",
        BLOCKS + "threads_wait_for_each_other_and_stay_inside_the_arrays[dense-8x8-in-two-tiles-observed]",
    ),
    Fault(
        "no barrier before sums go to the next taps of a row",
        "kernels/col2im_gather_blocks.cu",
        "            __syncwarp(); // the next lane",
        "            ; // the next lane",
        BLOCKS + "threads_wait_for_each_other_and_stay_inside_the_arrays[many-taps-observed]",
    ),
    Fault(
        "no barrier before a tile is stored",
        "kernels/col2im_gather_blocks.cu",
        "{0, 1});\n    __syncwarp();\n",
        "{0, 1});\n",
        BLOCKS + "threads_wait_for_each_other_and_stay_inside_the_arrays[dense-7x7-observed]",
    ),
    # --- arrays as others
    Fault(
        "leading axes that one array alone walks as one",
        "gpufold/geometry/blocks.py",
        "merged[-1][1:] == (extent * first, extent * second)",
        "merged[-1][1] == extent * first",
        BLOCKS + "leading_axes_that_are_walked_as_one_are_planes",
    ),
    # --- kernels: which taps land where
    Fault(
        "blocks stored beyond the end of their row",
        "kernels/im2col_taps.cu",
        "if (i < remaining)",
        "if (i <= remaining)",
        BLOCKS + "every_kernel_is_the_numpy_path_in_any_layout[dense-7x7]",
    ),
    Fault(
        "blocks packed beyond the end of their row",
        "kernels/im2col_packed.cu",
        "unsigned(left < blocks ? left : blocks)",
        "unsigned(blocks)",
        IM2COL + "packed_blocks_are_the_definition[threads-but-for-the-last-of-a-row-uint8-observed]",
    ),
    Fault(
        "a word that two threads share has the blocks of one",
        "kernels/packing.cuh",
        "(is_first ? 0 : to[0] & ((1u << shift) - 1))",
        "0u",
        IM2COL + "packed_blocks_are_the_definition[threads-but-for-the-last-of-a-row-uint8-observed]",
    ),
    Fault(
        "a tap past the end of the kernel",
        "kernels/col2im.cuh",
        "tap + number * pattern::tap_step < kernel[axis]",
        "tap + number * pattern::tap_step <= kernel[axis]",
        COL2IM + "every_variant_is_the_definition[stride-two-odd]",
    ),
    Fault(
        "a dilation dropped",
        "kernels/col2im_atomic.cu",
        "pixel[axis] += taps[axis] * dilation[axis];",
        "pixel[axis] += taps[axis];",
        COL2IM + "every_variant_is_the_definition[atrous-rate-six]",
    ),
    Fault(
        "divisors left out of shared memory",
        f"{VARIANTS}/whole_blocks.py",
        "weight_bytes(problem) * (sums if divides_by_taps else 1)),",
        "weight_bytes(problem)),",
        PLANNER_LAW + "blocks_brought_with_their_divisors_fit_shared_memory[float16-kernel0-strides0-dilations0]",
    ),
    Fault(
        "a call given up where the preferred variant refuses it",
        "gpufold/gpu/registry.py",
        "chain(preferred, ((name, None) for name in table))",
        "chain(preferred)",
        PLANNER_LAW + "auto_serves_what_any_variant_serves_within_the_limits_of_a_gpu",
    ),
    Fault(
        "atomic additions where their order matters",
        "gpufold/gpu/registry.py",
        "if plans[0].atomic_output and not problem.any_order:",
        "if plans[0].atomic_output and False:",
        PLANNER_LAW + "what_is_compiled_in_lies_within_its_type",
    ),
    Fault(
        "channels beyond 32 bits",
        f"{VARIANTS}/placed.py",
        "        view.channels,\n        max(reach),",
        "        max(reach),",
        PLANNER_LAW + "channels_are_numbers_of_their_own",
    ),
    Fault(
        "the stride in place of the dilation",
        "kernels/col2im.cuh",
        "block_step = dilation[axis] / common",
        "block_step = stride[axis] / common",
        COL2IM + "every_variant_is_the_definition[dilation-beyond-stride-coprime]",
    ),
    Fault(
        "cells that begin where blocks do",
        "kernels/col2im_gather.cu",
        "const Offset behind = phase + PHASE + i,",
        "const Offset behind = phase + i,",
        COL2IM + "every_variant_is_the_definition[stride-equals-kernel-padded]",
    ),
    Fault(
        "sums rounded at every addition",
        "kernels/col2im_gather.cu",
        "add(sums[k][i], weigh(widen(elements[n][k][i]), weights[n][i]));",
        "widen(narrow(add(sums[k][i], widen(elements[n][k][i]))));",
        COL2IM + "every_dtype_is_the_definition[stride-1-float16]",
    ),
    Fault(
        "a pixel past the end of a row",
        "kernels/unfold.cuh",
        "                                within(block.pixel[last_axis] + shift, parameters.size[last_axis]);",
        "                                within(block.pixel[last_axis] + shift, parameters.size[last_axis] + 1);",
        IM2COL + "every_variant_is_the_definition[bug-fold-with-padding]",
    ),
    Fault(
        "a word of pixels past the end of a row",
        "kernels/im2col_words.cu",
        "load_word_if<grain_bytes>(image + shift, inside & within(pixel + shift, size))",
        "load_word_if<grain_bytes>(image + shift, inside)",
        IM2COL + "words_of_blocks_are_the_definition[padded-rows-of-words-float16]",
    ),
    Fault(
        "rows that begin with the words of their first tap",
        "kernels/im2col_words.cu",
        "lead = extent.last_block > 0 ? unit : 0;",
        "lead = 0;",
        IM2COL + "long_rows_may_begin_at_any_element[1-observed]",
    ),
    Fault(
        "words that begin wherever the first tap of their row does",
        "kernels/im2col_words.cu",
        "lead + elements_past<unit>(row)",
        "lead",
        IM2COL + "long_rows_may_begin_at_any_element[1-sanitized]",
    ),
    Fault(
        "a part of a word stored as a whole",
        "kernels/im2col_words.cu",
        "if (within(first + i, row_blocks))",
        "if (true)",
        IM2COL + "long_rows_may_begin_at_any_element[2-observed]",
    ),
    Fault(
        "words cut out of a line of pixels from its first one on",
        "kernels/im2col_taps.cu",
        "line[pixels_before + i * line_stride + k]",
        "line[i * line_stride + k]",
        IM2COL + "words_of_taps_are_the_definition[a-line-in-words-float32-observed]",
    ),
    Fault(
        "the last axis's crop on every axis",
        "kernels/batch_to_space.cuh",
        "Offset block = pixel + parameters.crop[axis];",
        "Offset block = pixel + parameters.crop[last_axis];",
        SPACE + "every_layout_is_the_definition[nchw-crop-beyond-a-block-float32-batch_to_space]",
    ),
    Fault(
        "wide elements of a word stored as they lie in space",
        "kernels/space_to_batch_deinterleave.cu",
        "blocks.unit[i % blocks_per_word * block_width + i / blocks_per_word]",
        "blocks.unit[i]",
        SPACE + "every_layout_is_the_definition[one-plane-of-many-rows-float32-space_to_batch]",
    ),
    Fault(
        "the end of a block in front of the first one stored",
        "kernels/space_to_batch_deinterleave.cu",
        "const bool ends_block = word > 0;",
        "const bool ends_block = word >= 0;",
        SPACE + "lanes_in_any_order_give_the_same_and_never_race[nchw-4x4-cropped-to-whole-blocks-space_to_batch]",
    ),
    Fault(
        "a block after the last one begun",
        "kernels/space_to_batch_deinterleave.cu",
        "(parameters.blocks[last_axis].divisor - 1) * word_pixels",
        "parameters.blocks[last_axis].divisor * word_pixels",
        SPACE + "every_layout_is_the_definition[nchw-4x4-cropped-to-whole-blocks-uint8-space_to_batch]",
    ),
    # --- kernels: what is stored
    Fault(
        "weights taken in words wherever they lie",
        "kernels/col2im_gather.cu",
        "if (!(windowed && alike && part > 1) || aligned_weights<part>(window))",
        "if (true)",
        BLOCKS + "weights_may_lie_anywhere[sanitized]",
    ),
    Fault(
        "a plane skipped",
        "kernels/col2im_gather.cu",
        "int(min(p.channels - place.channel, Offset(planes)))",
        "int(min(p.channels - place.channel - 1, Offset(planes)))",
        COL2IM + "every_dtype_is_the_definition[stride-1-float32]",
    ),
    Fault(
        "the last pixel of a row not stored",
        "kernels/col2im_gather.cu",
        "return whole || (run.begin <= i & i < run.end);",
        "return whole || (run.begin <= i & i + 1 < run.end);",
        COL2IM + "every_variant_is_the_definition[stride-two-odd]",
    ),
    Fault(
        "memory between a struct's members as it was",
        "gpufold/gpu/parameters.py",
        "packed = np.zeros((), dtype)",
        "packed = np.empty((), dtype)",
        PLANNER_LAW + "equal_structs_have_equal_bytes",
    ),
    Fault(
        "the last products of a part not added",
        "gpufold/cpu/arithmetic.py",
        "(np.array_split(array, min(steps, shape[axis]), axis) for array in arrays)",
        "(np.array_split(array, min(steps, shape[axis]), axis)[:-1] for array in arrays)",
        FUSIONS + "random_problems_are_their_definition[tiled-100]",
    ),
    Fault(
        "blocks taken apart beyond the end of their row",
        f"{VARIANTS}/space_to_batch.py",
        "(last.size % (count * last.kernel) or count",
        "(count",
        SPACE + "every_layout_is_the_definition[nchw-3x3-cropped-at-the-end-float32-space_to_batch]",
    ),
    Fault(
        "a phase of a block taken for another",
        "kernels/space_to_batch_deinterleave.cu",
        "element % blocks_per_word * block_width + phase",
        "element % blocks_per_word * block_width + phase / 2",
        SPACE + "every_layout_is_the_definition[nchw-6x6-uint8-space_to_batch]",
    ),
    Fault(
        "a word loaded of a phase that has no elements left",
        "kernels/batch_to_space_packed.cu",
        "exists > 0 ? past + exists : 0",
        "past + exists",
        SPACE + "lanes_in_any_order_give_the_same_and_never_race[nchw-4x3-batch_to_space]",
    ),
    Fault(
        "words of a tile that change places on one way alone",
        "kernels/packing.cuh",
        "tile[place(word)]",
        "tile[word]",
        SPACE + "every_layout_is_the_definition[nchw-6x6-float32-batch_to_space]",
    ),
    Fault(
        "a piece of a row that ends in the word it begins in",
        f"{VARIANTS}/batch_to_space.py",
        "rest >= of_word",
        "rest >= 1",
        SPACE + "every_variant_is_the_definition[6d-batch_to_space]",
    ),
    Fault(
        "the last of an odd number of planes not moved",
        "kernels/batch_to_space_index_map.cu",
        "for (; planes > 0; --planes)",
        "for (; planes > 1; --planes)",
        SPACE + "every_layout_is_the_definition[nchw-2x2-float32-batch_to_space]",
    ),
    Fault(
        "the strides of batch and channels swapped",
        "kernels/col2im.cuh",
        "image + lengthened(batch) * p.image_batch + lengthened(channel) * p.image_channel",
        "image + lengthened(batch) * p.image_channel + lengthened(channel) * p.image_batch",
        COL2IM + "random_geometries_in_any_layout_are_the_numpy_path[0]",
    ),
    # --- fusions
    Fault(
        "a mean divided by the number of taps of one axis",
        "kernels/fusion.cuh",
        "return axis == 0 ? factor : before.times(factor);",
        "return factor;",
        COL2IM + "every_variant_fuses_as_the_numpy_path",
    ),
    Fault(
        "squares of weights divided by their plain sum",
        "kernels/fusion.cuh",
        "squares ? multiply(weight, weight) : weight);",
        "weight);",
        COL2IM + "every_variant_fuses_as_the_numpy_path",
    ),
    Fault(
        "products of weights that underflow in a kernel of add_blocks",
        "kernels/positions.cuh",
        "? multiply_at_least<least_exponent>(product, at_least<least_exponent>(factor[axis]))",
        "? multiply(product, factor[axis])",
        "tests/test_underflow.py::test_kernels_of_add_blocks_have_the_same_bits",
    ),
    Fault(
        "products of weights that underflow in a kernel of col2im",
        "kernels/fusion.cuh",
        "        return at_least<least_exponent>(weight);",
        "        return weight;",
        "tests/test_underflow.py::test_kernels_of_col2im_have_the_same_bits",
    ),
    Fault(
        "products of weights that underflow in NumPy",
        "gpufold/weights.py",
        "product = library.where(small, library.sign(before) * library.sign(weights) * least, product)",
        "pass",
        "tests/test_underflow.py::test_least_squares_lose_no_element_either",
    ),
    Fault(
        "uncovered pixels divided by zero",
        "kernels/window.cuh",
        "return covered ? divide(sum, divisor) : Number{};",
        "return divide(sum, divisor);",
        COL2IM + "every_variant_fuses_as_the_numpy_path",
    ),
    Fault(
        "the imaginary part left without its weight",
        "kernels/common.cuh",
        "template <typename Real> inline __device__ Complex<Real> multiply(Complex<Real> a, Real b)\n"
        "{\n    return {multiply(a.real, b), multiply(a.imaginary, b)};",
        "template <typename Real> inline __device__ Complex<Real> multiply(Complex<Real> a, Real b)\n"
        "{\n    return {multiply(a.real, b), a.imaginary};",
        COL2IM + "every_variant_fuses_as_the_numpy_path",
    ),
    Fault(
        "the first axis's weights on every axis",
        "kernels/fusion.cuh",
        "const Weight weight = counted(load_if(window->of_axis[axis - unweighted] + tap, exists));",
        "const Weight weight = counted(load_if(window->of_axis[0] + tap, exists));",
        COL2IM + "every_variant_fuses_as_the_numpy_path",
    ),
    Fault(
        "an axis without weights left out of the mean",
        "kernels/fusion.cuh",
        "return {add(factor.sum, Weight(exists)), factor.covers || exists};",
        "return {factor.sum, factor.covers || exists};",
        BLOCKS + "leading_axes_apart_have_no_weights[mean]",
    ),
    Fault(
        "an infinite weight times the zero of a tap that does not exist",
        "kernels/fusion.cuh",
        "joined(or_zero(product, exists), weight)",
        "joined(product, weight)",
        COL2IM + "no_weight_counts_where_its_tap_does_not_exist[0]",
    ),
    Fault(
        "an infinite weight times the zero of a row that does not exist",
        "kernels/fusion.cuh",
        "or_zero(weight, exists)",
        "weight",
        COL2IM + "no_weight_counts_where_its_tap_does_not_exist[0]",
    ),
    *(
        Fault(
            f"{bits} bits of a weight that are not shifted out where its tap does not exist",
            "kernels/window.cuh",
            f"counts ? 0 : {bits};",
            "0;",
            f"tests/test_ptx.py::test_machine_code_gives_the_bits_of_the_numpy_path[awkward-{name}weights]",
        )
        for bits, name in ((32, ""), (64, "double-"))
    ),
    Fault(
        "an infinite weight on a part that its tap misses",
        "kernels/col2im_gather.cu",
        ".in_row(weights[n], outer, row.tap(0, number), here);",
        ".in_row(weights[n], outer, row.tap(0, number), true);",
        COL2IM + "no_weight_counts_where_its_tap_does_not_exist[0]",
    ),
    Fault(
        "an infinite sum of weights on a pixel that nothing covers",
        "kernels/fusion.cuh",
        "return {both ? multiply(sum, other.sum) : Weight(0), both};",
        "return {multiply(sum, other.sum), both};",
        COL2IM + "no_weight_counts_where_its_tap_does_not_exist[15]",
    ),
    Fault(
        "an infinite weight in the padding",
        "kernels/unfold.cuh",
        "multiply(inside ? chunk.weight : Weight(0), weight)",
        "multiply(chunk.weight, weight)",
        IM2COL + "a_window_multiplies_what_is_taken[padding-beyond-kernel-separable-awkward_window]",
    ),
    Fault(
        "an infinite share of an axis where another has none",
        "gpufold/cpu/averages.py",
        "divisor[(ALL,) * number + (_counts(axis) == 0,)] = 0",
        "pass",
        FUSIONS + "uncovered_pixels_are_zero_beside_infinite_weights[mean-separable]",
    ),
    Fault(
        "an old image left out of the sum",
        "kernels/fusion.cuh",
        "return add(widen(element), pixel);",
        "return pixel;",
        COL2IM + "every_variant_fuses_as_the_numpy_path",
    ),
    Fault(
        "the first axis of a window turned round",
        "gpufold/cpu/treatment.py",
        "else weights.reshape(1, 1",
        "else weights[::-1].reshape(1, 1",
        FUSIONS + "random_problems_are_their_definition",
    ),
    Fault(
        "a mean of the sum and what was there before",
        "gpufold/cpu/folding.py",
        '    if treatment.reduction != "sum":\n        average(total, axes, treatment)\n'
        "    if treatment.accumulate:\n        np.add(image, total, total if narrow else image)\n",
        "    if treatment.accumulate:\n        np.add(image, total, total if narrow else image)\n"
        '    if treatment.reduction != "sum":\n        average(image, axes, treatment)\n',
        FUSIONS + "every_fusion_is_its_definition",
    ),
    # --- blocks at positions of their own
    Fault(
        "no barrier before the list of blocks is read",
        "kernels/add_blocks_gather.cu",
        "        __syncthreads();\n\n        for (int of_lanes = 0;",
        "        for (int of_lanes = 0;",
        ADD_BLOCKS
        + "threads_wait_for_each_other_and_stay_inside_the_arrays[more-than-a-block-of-threads-tests-observed]",
    ),
    Fault(
        "a list of blocks that is made before they are counted",
        "kernels/add_blocks_gather.cu",
        "            counts[warp] = of_warp;\n        __syncthreads();\n",
        "            counts[warp] = of_warp;\n",
        ADD_BLOCKS
        + "threads_wait_for_each_other_and_stay_inside_the_arrays[more-than-a-block-of-threads-tests-observed]",
    ),
    Fault(
        "the last block of a list added again where there is no other",
        "kernels/add_blocks_gather.cu",
        "list[votes ? of_lanes + __ffs(votes) - 1 : found]",
        "list[votes ? of_lanes + __ffs(votes) - 1 : found - 1]",
        OWN_TILE + "[gather-spread-True-plain]",
    ),
    Fault(
        "sums that start again with each part of a list",
        "kernels/add_blocks_gather.cu",
        "                started = true;\n",
        "",
        OWN_TILE + "[gather-spread-True-plain]",
    ),
    Fault(
        "no barrier before the numbers of warps' blocks are added up",
        "kernels/bins.cu",
        "            of_warp[warp] = until;\n        __syncthreads();\n",
        "            of_warp[warp] = until;\n",
        CROWDED,
    ),
    Fault(
        "no barrier before a part of the lists is known",
        "kernels/bins.cu",
        "total);\n        __syncthreads();\n",
        "total);\n",
        CROWDED.replace("everything-in-a-few-tiles", "a-crowd-among-others"),
    ),
    Fault(
        "no barrier before blocks are marked",
        "kernels/bins.cu",
        "                marked[mark] = false;\n            __syncthreads();\n",
        "                marked[mark] = false;\n",
        CROWDED,
    ),
    Fault(
        "no barrier before marks are counted",
        "kernels/bins.cu",
        "                    marked[blocks[other] - first] = true;\n            __syncthreads();\n",
        "                    marked[blocks[other] - first] = true;\n",
        CROWDED,
    ),
    Fault(
        "no barrier before the numbers of threads' marks are added up",
        "kernels/bins.cu",
        "                found[thread] += marked[mark];\n            __syncthreads();\n",
        "                found[thread] += marked[mark];\n",
        CROWDED,
    ),
    Fault(
        "no barrier before marks are cleared again",
        "kernels/bins.cu",
        "*place++ = first + mark;\n            __syncthreads();\n",
        "*place++ = first + mark;\n",
        CROWDED.replace("everything-in-a-few-tiles", "more-blocks-than-marks"),
    ),
    Fault(
        "blocks of a crowded tile put in descending order",
        "kernels/bins.cu",
        "place[number] += block < own[number];",
        "place[number] += block > own[number];",
        OWN_TILE + "[lists-spread-True-plain]",
    ),
    Fault(
        "one block more than a tile has room for",
        "kernels/bins.cu",
        "if (within(place[number][corner], noted))",
        "if (within(place[number][corner], noted + 1))",
        OWN_TILE + "[lists-spread-True-plain]",
    ),
    Fault(
        "a tile's blocks added as threads noted them",
        "kernels/add_blocks_lists.cu",
        "if (__any_sync(~0u, number < before))",
        "if (false)",
        OWN_TILE + "[lists-spread-False-shuffled]",
    ),
    Fault(
        "a block noted of each tile as of the first that it meets",
        "kernels/bins.cu",
        "note - Meetings::less(corner, p);",
        "note;",
        OWN_TILE + "[lists-spread-False-shuffled]",
    ),
    Fault(
        "what a call before has noted added to a tile",
        "kernels/add_blocks_lists.cu",
        "load_if(notes + place, place < bin.count, ~Note(0))",
        "load_if(notes + place, bin.count > 0, ~Note(0))",
        ADD_BLOCKS + "a_tile_gets_what_was_noted_of_it_in_this_call[0-block0-unsigned]",
    ),
    Fault(
        "a block noted of two tiles along an axis, however many it meets",
        "kernels/bins.cu",
        "    } while (more);\n}",
        "    } while (false);\n}",
        ADD_BLOCKS + "every_kernel_is_the_numpy_path_in_any_layout[whole-warps-0]",
    ),
    Fault(
        "positions beyond 32 bits taken for those within",
        "kernels/bins.cu",
        "int(given[number] >> 32) == int(position >> 31)",
        "true",
        ADD_BLOCKS + "every_kernel_is_the_numpy_path_in_any_layout[farthest-0]",
    ),
    Fault(
        "a block added to rows that it does not cover, beside those that it does",
        "kernels/add_blocks_lists.cu",
        "covered[row] = of_entry & pixels.bit[row];",
        "covered[row] = of_entry;",
        ADD_BLOCKS + "every_kernel_is_the_numpy_path_in_any_layout[several-tiles-0]",
    ),
    Fault(
        "the second of two layers left out",
        "kernels/add_blocks_lists.cu",
        "                add(next);",
        "",
        ADD_BLOCKS + "a_crowded_tile_has_its_blocks_in_order[a-crowd-among-others-plain]",
    ),
    Fault(
        "sums of a crowded tile that start again with each part of its list",
        "kernels/add_blocks_lists.cu",
        "elements[plane][row] = touched[row] ? elements[plane][row] : widen(before);",
        "elements[plane][row] = widen(before);",
        OWN_TILE + "[lists-spread-True-plain]",
    ),
    Fault(
        "a block that ends on a tile's first pixel taken for one before it",
        "kernels/positions.cuh",
        "position > (long long)(begin)-block;",
        "position > (long long)(begin)-block + 1;",
        ADD_BLOCKS + "every_kernel_is_the_numpy_path_in_any_layout[every-border-2]",
    ),
    Fault(
        "positions cut to 32 bits",
        "kernels/add_blocks_atomic.cu",
        "        const long long position =\n",
        "        const int position =\n",
        ADD_BLOCKS + "every_kernel_is_the_numpy_path_in_any_layout[farthest-0]",
    ),
    Fault(
        "the sign of a weight of zero lost where another block lands beside",
        "kernels/positions.cuh",
        "(exists ? 0 : 1u << 31)",
        "0u",
        ADD_BLOCKS + "blocks_beside_a_pixel_leave_the_sign_of_its_weight[gather]",
    ),
    Fault(
        "blocks before a tile left out of it",
        "gpufold/cpu/placing.py",
        "(first > begin - block)",
        "(first >= begin)",
        ADD_BLOCKS + "it_is_its_definition[tiled-several-tiles-none]",
    ),
    Fault(
        "products of narrow blocks rounded though the array is wider",
        "gpufold/cpu/placing.py",
        ".astype(total.dtype, copy=False)",
        "",
        ADD_BLOCKS + "a_wider_out_takes_blocks_as_if_they_were_converted_first[whole-all-in-one-place-float16-float32]",
    ),
    Fault(
        "an edge that is one pixel beyond the array",
        "kernels/take_blocks.cuh",
        "return max(Offset(0), min(pixel, p.size[axis] - 1));",
        "return max(Offset(0), min(pixel, p.size[axis]));",
        TAKE_BLOCKS + "every_kernel_is_the_numpy_path_in_any_layout[every-border-1]",
    ),
    Fault(
        "positions of blocks that are taken cut to 32 bits",
        "kernels/take_blocks.cuh",
        "first_pixel(long long position",
        "first_pixel(int position",
        TAKE_BLOCKS + "every_kernel_is_the_numpy_path_in_any_layout[farthest-0]",
    ),
    Fault(
        "planes stored that a thread lacks",
        "kernels/take_blocks_direct.cu",
        "p.block[along] && exists(plane))",
        "p.block[along])",
        TAKE_BLOCKS + "planes_of_which_no_thread_gets_an_equal_share[float32]",
    ),
    Fault(
        "a weight multiplied into what lies outside of the array",
        "gpufold/cpu/placing.py",
        "        if elements.size and not nearest:\n",
        "        if elements.size and not nearest and weights is None:\n",
        TAKE_BLOCKS + "outside_is_zero_whatever_the_window[by rows]",
    ),
    Fault(
        "zeros added to pixels that hold a negative zero",
        "gpufold/cpu/placing.py",
        "nothing = -zero if",
        "nothing = +zero if",
        ADD_BLOCKS + "what_falls_outside_leaves_negative_zeros_as_they_are",
    ),
    Fault(
        "the planes of a transposed array read as if they lay one row after another",
        "gpufold/cpu/placing.py",
        "np.array(array.strides[-rank:]) // unit",
        "np.cumprod((1, *array.shape[:-rank:-1]))[::-1] * (array.itemsize // unit)",
        TAKE_BLOCKS + "random_problems_are_their_definition",
    ),
    # --- stitching
    Fault(
        "rows that were given, still there when others are moved over them",
        "gpufold/stitching.py",
        "            _rows(array, axis, self._count, self._count + step)[...] = 0\n",
        "            _rows(array, axis, self._count + step, self._count + step)[...] = 0\n",
        STITCHER + "what_is_not_finished_is_not_copied",
    ),
    Fault(
        "weights of least squares that are not squared",
        "gpufold/stitching.py",
        "tuple([each * each for each in self.factors])",
        "tuple(self.factors)",
        STITCHER + "batches_never_show[0]",
    ),
    Fault(
        "a stitcher whose methods do not wait for each other",
        "gpufold/stitching.py",
        "        with stitcher._lock:\n",
        "        with RLock():\n",
        STITCHER + "tiles_that_threads_add_are_all_there[mean-False]",
    ),
    Fault(
        "an addition that was interrupted and is not known to be",
        "gpufold/stitching.py",
        "            kept.torn = True  # from here",
        "            kept.torn = False  # from here",
        STITCHER + "a_batch_that_is_interrupted_while_it_is_added_is_known_to_be_torn[1-KeyboardInterrupt]",
    ),
    Fault(
        "a window that stays its caller's",
        "gpufold/backends.py",
        "        return weights.copy()\n",
        "        return weights\n",
        STITCHER + "a_window_that_changes_afterwards_changes_nothing[full-asarray]",
    ),
    Fault(
        "an array of a subclass that is ready before it is known whose it is",
        "gpufold/arrays.py",
        "            type(weights) is library.ndarray\n",
        "            isinstance(weights, library.ndarray)\n",
        "tests/test_arrays.py::"
        "test_an_array_with_a_mask_or_arithmetic_of_its_own_is_refused_wherever_it_is_given[col2im-masked]",
    ),
    Fault(
        "a smaller tile that gets the end of the window",
        "gpufold/stitching.py",
        "    return window[tuple(map(slice, tile))]\n",
        "    return window[tuple(slice(-side, None) for side in tile)]\n",
        STITCHER + "batches_never_show[0]",
    ),
    Fault(
        "a stream that ends with the last block, however small its tile",
        "gpufold/stitching.py",
        "end = max(end, min(rows, reached + tile[0]))",
        "end = max(end, min(rows, reached + self._block[0]))",
        STITCHER + "slabs_are_the_whole[0-True]",
    ),
    Fault(
        "a grid whose last block is a stride behind the one before",
        "gpufold/positions.py",
        "        begins[-1] = end\n",
        "",
        "tests/test_grid_positions.py::test_random_grids_are_their_definition[shift]",
    ),
    Fault(
        "tiles counted from the first of the array, not of the chunk",
        "gpufold/dask/stitching.py",
        "places = [positions[numbers] - begin for _, numbers in met]",
        "places = [positions[numbers] for _, numbers in met]",
        DASK + "a_chunk_depends_on_the_blocks_that_meet_it_and_on_nothing_else[stitch-shape1-chunks1]",
    ),
    # --- dask
    Fault(
        "half precision that is rounded for each chunk of the blocks",
        "gpufold/dask/positions.py",
        "    if call.element.is_half:  # which is rounded once",
        "    if not pieces:",
        DASK + "half_precision_is_rounded_once_however_blocks_are_cut",
    ),
    Fault(
        "blocks of a chunk that are added in another order",
        "gpufold/dask/chunks.py",
        """    order = np.argsort(pair, kind="stable")""",
        """    order = np.lexsort((-block, pair))""",
        DASK + "named_cases_of_positions_have_the_bits_of_eager_calls[more-than-a-block-of-threads-tests]",
    ),
    Fault(
        "weights that go with the leading axes of sums",
        "gpufold/dask/positions.py",
        "    of_weight = axes[len(geometry_of(call, AverageGeometry).lead) :]\n",
        "    of_weight = axes[: weight.ndim]\n",
        DASK + "tiles_of_ones_have_the_sums_of_weights",
    ),
    Fault(
        "a chunk that waits for blocks beside it",
        "gpufold/dask/chunks.py",
        """        first = np.searchsorted(ends, begin, "right")""",
        """        first = np.searchsorted(ends, begin, "left")""",
        DASK + "a_chunk_depends_on_the_blocks_that_meet_it_and_on_nothing_else[add_blocks-shape0-chunks0]",
    ),
    Fault(
        "blocks at a seam given to one side only",
        "gpufold/dask/chunks.py",
        "[axis.section(span.start, span.stop)[1] for span in spans_of(sizes)]\n        for axis, sizes in zip(axes,",
        "[axis.section(span.start + axis.stride, span.stop)[1] for span in spans_of(sizes)]\n"
        "        for axis, sizes in zip(axes,",
        DASK + "random_blocks_have_the_bits_of_eager_calls",
    ),
    Fault(
        "a row of blocks cut in two",
        "gpufold/dask/chunks.py",
        "ends = sorted({-(-end // unit) * unit for end in accumulate(sizes)})",
        "ends = sorted(set(accumulate(sizes)))",
        DASK + "chunks_that_cut_channels_or_rows_of_blocks_reach_to_their_end",
    ),
    Fault(
        "empty chunks that come in",
        "gpufold/dask/chunks.py",
        "        if 0 in sizes and len(sizes) > 1:",
        "        if not sizes:",
        DASK + "empty_chunks_change_nothing[average-arrays12-arguments12]",
    ),
    Fault(
        "a window that its caller may still change",
        "gpufold/dask/chunks.py",
        "tuple(each.copy() for each in weights)",
        "tuple(weights)",
        DASK + "what_a_caller_changes_after_the_call_changes_no_result[stitch-full]",
    ),
    # --- the planner
    Fault(
        "a step from a plane to the next that no offset holds",
        f"{VARIANTS}/sums.py",
        "view.channels, *planes, *steps",
        "view.channels, *steps",
        COL2IM + "offsets_are_wide_where_a_plane_or_the_threads_need_it",
    ),
    Fault(
        "pads_end in place of pads_begin",
        f"{VARIANTS}/sums.py",
        "[axis.pad_begin for axis in axes]",
        "[axis.pad_end for axis in axes]",
        COL2IM + "every_variant_is_the_definition[bug-pads-end-read-from-begin]",
    ),
    Fault(
        "the phase of the other end's padding",
        f"{VARIANTS}/col2im.py",
        "in_front, past_row = row.pad_begin % row.stride, 0",
        "in_front, past_row = row.pad_end % row.stride, 0",
        COL2IM + "every_variant_is_the_definition[stride-two-asymmetric]",
    ),
    Fault(
        "no zero fill before atomic additions",
        f"{VARIANTS}/sums.py",
        'view_of(problem), variant == "atomic"',
        "view_of(problem), False",
        COL2IM + "every_dtype_is_the_definition[stride-1-int32]",
    ),
    Fault(
        "images stepped through by the wrong strides",
        f"{VARIANTS}/im2col.py",
        "array_plane_step=view.image_channel,",
        "array_plane_step=view.image_batch,",
        IM2COL + "images_of_any_strides_are_read_in_place[kernel0-1-channels-and-batch-swapped]",
    ),
    Fault(
        "phases of the batch array a block's width too far apart",
        f"{VARIANTS}/moves.py",
        "geometry.batch * batch.strides[0] * step for",
        "geometry.block[-1] * geometry.batch * batch.strides[0] * step for",
        SPACE + "every_layout_is_the_definition[nchw-4x3-float32-batch_to_space]",
    ),
    Fault(
        "the pixels that begin a block taken for those that end one",
        "gpufold/gpu/variants/space_to_batch.py",
        "ends_before = -last.pad % last.kernel",
        "ends_before = last.pad % last.kernel",
        SPACE + "every_layout_is_the_definition[nchw-4x4-cropped-to-whole-blocks-uint8-space_to_batch]",
    ),
    Fault(
        "words of several blocks beside a padding of fewer",
        "gpufold/gpu/variants/space_to_batch.py",
        "stores = [last.blocks, last.pad // last.kernel, moves.tap_step,",
        "stores = [last.blocks, moves.tap_step,",
        SPACE + "words_taken_apart_are_as_wide_as_the_rows_and_their_phases_allow",
    ),
    Fault(
        "products of 32 bits past 2**31",
        "gpufold/gpu/parameters.py",
        "if max(largest) <= INT32_MAX:",
        "if min(largest) <= INT32_MAX:",
        COL2IM + "offsets_are_wide_where_a_plane_or_the_threads_need_it",
    ),
    Fault(
        "a division that is off by one",
        "gpufold/gpu/parameters.py",
        "((1 << shift) - number) // number + 1, shift",
        "((1 << shift) - number) // number, shift",
        COL2IM + "every_variant_is_the_definition[stride-two-odd]",
    ),
    # --- geometry
    Fault(
        "crops of the begin and the end swapped",
        "gpufold/geometry/space.py",
        "return block_shape[1:], margins[0], margins[1]",
        "return block_shape[1:], margins[1], margins[0]",
        NUMPY_PATH + "batch_and_space_are_their_definition[nchw-cropped-float32]",
    ),
    Fault(
        "a block too many under dilation",
        "gpufold/geometry/axes.py",
        "return (self.padded_size - self.dilated_kernel) // self.stride + 1",
        "return (self.padded_size - self.kernel) // self.stride + 1",
        NUMPY_PATH + "im2col_is_its_definition[chosen-bug-height-width-swapped-under-dilation]",
    ),
    Fault(
        "a block of padding taken for one of the image",
        "gpufold/geometry/axes.py",
        "last = min(self.blocks, (self.size - 1 - offset) // self.stride + 1)",
        "last = min(self.blocks, (self.size - offset) // self.stride + 1)",
        NUMPY_PATH + "im2col_is_its_definition[chosen-bug-fold-with-padding]",
    ),
    Fault(
        "a block missed by the window it reaches into",
        "gpufold/geometry/axes.py",
        "first = max(0, -((self.dilated_kernel - 1 - self.pad_begin - start) // self.stride))",
        "first = max(0, 1 - ((self.dilated_kernel - 1 - self.pad_begin - start) // self.stride))",
        NUMPY_PATH + "col2im_is_its_definition[tiled-stride-two-asymmetric]",
    ),
    # --- the NumPy path
    Fault(
        "items begun after one has raised",
        "gpufold/threads.py",
        "            waiting.clear()  # empty already, unless an item raised\n",
        "            pass\n",
        "tests/test_threads.py::test_an_error_in_one_item_stops_the_others_and_is_raised",
    ),
    Fault(
        "a strip of columns dropped",
        "gpufold/cpu/runs.py",
        "    for start, stop in ((0, low), (high, last.size)):",
        "    for start, stop in ((0, low),):",
        NUMPY_PATH + "col2im_is_its_definition[flat-bug-fold-with-padding]",
    ),
    Fault(
        "what reaches past the end of a row left in the copy of small planes",
        "gpufold/cpu/runs.py",
        "for start, stop in ((0, inside.start), (inside.stop, last.blocks)):",
        "for start, stop in ((0, inside.start),):",
        NUMPY_PATH + "large_problems_have_the_bits_of_small_ones[many-small-planes-padded-at-the-end-float32]",
    ),
    Fault(
        "taps a stride apart added as if they reached the same pixels",
        "gpufold/cpu/runs.py",
        "again[-1] -= further[-1]",
        "again[-1] -= 0",
        NUMPY_PATH + "col2im_is_its_definition[tiled-bug-fold-with-padding]",
    ),
    Fault(
        "sums of small planes stored a row apart",
        "gpufold/cpu/runs.py",
        "begin=tuple(pad - cell * stride",
        "begin=tuple(0 * pad - 0 * cell * stride",
        NUMPY_PATH + "col2im_is_its_definition[tiled-stride-two-asymmetric]",
    ),
    Fault(
        "a block's negative zero moved as it is, where no other is added",
        "gpufold/cpu/cells.py",
        "    if way.once and not move:",
        "    if way.once and move:",
        NUMPY_PATH + "sums_start_from_positive_zero_and_moves_keep_bits",
    ),
    Fault(
        "the window forgotten where small planes are copied",
        "gpufold/cpu/runs.py",
        "multiply(rows(source[few][some]), factors, place)",
        "multiply(rows(source[few][some]), None, place)",
        NUMPY_PATH + "a_window_of_infinities_reaches_no_other_plane_or_row[many-small-planes-float32]",
    ),
    Fault(
        "blocks added first to last, and a pixel's taps last to first",
        "gpufold/cpu/slices.py",
        ".T[::-1]",
        ".T",
        BLOCKS + "large_blocks_in_rows_have_the_bits_of_columns[volume-fold_slices-sum]",
    ),
    Fault(
        "blocks that end in a tile and begin before it shifted to its begin",
        "gpufold/cpu/slices.py",
        "slice(start - p, stop - p)",
        "slice(0, stop - start)",
        NUMPY_PATH + "col2im_is_its_definition[sliced-tiled-bug-fold-with-padding]",
    ),
    Fault(
        "a half precision's negative zero moved as it is, where it should be summed",
        "gpufold/cpu/folding.py",
        "words[words == 1 << 15] = 0",
        "words[words == 1 << 16] = 0",
        NUMPY_PATH + "sums_start_from_positive_zero_and_moves_keep_bits",
    ),
    Fault(
        "the blocks of an axis added first to last, so that a pixel's taps come last to first",
        "gpufold/cpu/cells.py",
        "pairs[:: -1 if turned else 1]",
        "pairs[:: 1 if turned else 1]",
        NUMPY_PATH + "few_blocks_of_many_taps_are_their_definition[tiled-0]",
    ),
    Fault(
        "blocks that reach into a tile from before it left out of those near it",
        "gpufold/cpu/placing.py",
        "((block[along] - 1,), (0,))",
        "((0,), (0,))",
        ADD_BLOCKS + "positions_are_looked_for_in_few_of_many_tiles[by index-()]",
    ),
    Fault(
        "positions of an array that lies backwards left as they are",
        "gpufold/cpu/placing.py",
        "np.subtract(size, block) - positions, positions)",
        "positions, positions)",
        ADD_BLOCKS + "few_blocks_are_added_and_taken_in_any_layout_without_a_copy_of_the_array[backwards-f4]",
    ),
    Fault(
        "results kept however many bytes they take",
        "gpufold/keeping.py",
        "if 4 * size > KEPT_BYTES:",
        "if size < 0:",
        "tests/test_memory.py::test_what_is_kept_of_all_sizes_is_bounded",
    ),
    Fault(
        "what lies outside multiplied by its weight where columns are few",
        "gpufold/cpu/indexed.py",
        "some[indices.reshape(some.shape) < 0] = 0",
        "pass",
        FUSIONS + "a_window_multiplies_what_im2col_takes[chosen-stride-two-odd-separable]",
    ),
    Fault(
        "half precision summed in half precision",
        "gpufold/elements.py",
        "return np.dtype(element.weight) if element is not None and element.is_half else dtype",
        "return dtype",
        NUMPY_PATH + "half_precision_is_summed_in_float32_and_rounded_once",
    ),
    Fault(
        "no zeros where no block reaches",
        "gpufold/cpu/cells.py",
        "    if not way.once:\n",
        "    if way.once:\n",
        NUMPY_PATH + "col2im_is_its_definition[tiled-bug-uncovered-pixels-never-written]",
    ),
)


PTX = "tests/test_ptx.py::test_machine_code_gives_the_bits_of_the_numpy_path"

INLINE_PTX = {
    "add_blocks_lists.cu": (
        ("%3, 0xd8;", "%3, 0xca;", "add_blocks_lists"),
        ("bfind.u32 %0, %2;", "clz.b32 %0, %2;", "add_blocks_lists"),
        ("    word ^= bit;\n", "", "add_blocks_lists"),
    ),
    "bins.cu": (
        ("@p atom.global.add.u64 %0, [%1], 1;", "@p atom.global.add.u64 %0, [%1], 0;", "wide-offsets"),
        ("@p atom.global.add.u32 %0, [%1], 1;", "@p atom.global.add.u32 %0, [%1], 0;", "lists"),
    ),
    "positions.cuh": (("shl.b32 %0, %1, %2;", "shr.u32 %0, %1, %2;", "add_blocks_gather"),),
    "window.cuh": (
        ("shl.b32 %0, %0, %1;", "shl.b32 %0, %0, 32;", "weights"),
        ("shl.b64 %0, %0, %1;", "shl.b64 %0, %0, 64;", "double-weights"),
    ),
    "common.cuh": (
        ("cvt.f32.f16 %0, %1;", "cvt.f32.bf16 %0, %1;", "halves"),
        ("cvt.rn.f16.f32", "cvt.rn.bf16.f32", "halves"),
        ("cvt.rn.bf16.f32", "cvt.rn.f16.f32", "brain-halves"),
        ("add.rn.f32", "sub.rn.f32", "weights"),
        ("mul.rn.f32", "add.rn.f32", "weights"),
        ("div.rn.f32", "mul.rn.f32", "average_direct"),
        ('"fma.rn.f32 %0, %1, %2, %3;"', '"fma.rn.f32 %0, %1, %2, %2;"', "quotients"),
        ("neg.f32 n, %1;", "mov.f32 n, %1;", "quotients"),
        ("rcp.approx.ftz.f32", "neg.f32", "quotients"),
        ("mov.b32 %0, %3; @p ld.global.nc.u8", "mov.b32 %0, 1; @p ld.global.nc.u8", "bytes"),
        ("mov.b32 %0, %3; @p ld.global.nc.u16", "mov.b32 %0, 1; @p ld.global.nc.u16", "halfwords"),
        ("mov.b32 %0, %3; @p ld.global.nc.u32", "mov.b32 %0, 1; @p ld.global.nc.u32", "col2im_gather"),
        ("mov.b64 %0, %3; @p ld.global.nc.u64", "mov.b64 %0, 1; @p ld.global.nc.u64", "zeros-of-pads"),
        (
            '%5; "\n        "@p ld.global.nc.v2.u64 {%0',
            '%5; "\n        "@p ld.global.nc.v2.u64 {%1',
            "words-of-pixels",
        ),
        ("0; @p ld.global.nc.u32 %0, [%1];", "0; @p ld.global.nc.u32 %0, [%1+4];", "im2col_packed"),
        ("0; @p ld.global.nc.u64 %0, [%1];", "0; @p ld.global.nc.u64 %0, [%1+8];", "batch_to_space_packed"),
        ("0; @p ld.global.nc.v2.u64 {%0, %1}", "0; @p ld.global.nc.v2.u64 {%1, %0}", "col2im_gather_blocks"),
        ("ld.global.v2.u64 {%0, %1}", "ld.global.v2.u64 {%1, %0}", "words-of-blocks"),
        ("st.global.u8 [%0]", "st.global.u8 [%0+1]", "bytes"),
        ("st.global.u16 [%0]", "st.global.u16 [%0+2]", "halfwords"),
        ("st.global.u32 [%0]", "st.global.u32 [%0+4]", "col2im_gather"),
        ("st.global.u64 [%0]", "st.global.u64 [%0+8]", "pairs"),
        ("st.global.v2.u64 [%0], {%1, %2}", "st.global.v2.u64 [%0], {%2, %1}", "im2col_words"),
    ),
}
"""Of each file: what stands there once, what replaces it, and the case of the machine code's test that must notice."""

FAULTS += tuple(
    Fault(f"inline PTX of {file}: {old.strip()}", f"kernels/{file}", old, new, f"{PTX}[{case}]")
    for file, faults in INLINE_PTX.items()
    for old, new, case in faults
)


def run_tests(folder: Path, tests: list[str], *options: str) -> tuple[int, str]:
    """Run tests on a copy of the checkout; give pytest's exit status and output.

    Without the plugins that other packages bring, whose imports take longer than most tests.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(options or ["--all"]), *tests]
    environment = os.environ | {"PYTHONPATH": "tests", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.returncode, done.stdout


def copy_checkout(folder: Path) -> None:
    """Copy what the tests need; faults go into copies of this copy alone."""
    for name in ("gpufold", "kernels", "tests", "bench"):
        shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CHECKOUT / "pyproject.toml", folder)


def of_this_machine() -> list[Fault]:
    """Return the faults whose tests can run here."""
    return [fault for fault in FAULTS if "test_torch" not in fault.test or find_spec("torch") is not None]


def survives(fault: Fault, sound: Path) -> str | None:
    """Say why the fault's test did not turn red on account of it, or None if it did."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(sound, Path(folder) / "checkout")
        (copy / fault.file).write_text(fault.breaks((copy / fault.file).read_text()))
        status, output = run_tests(copy, [fault.test])
    if "BuildError" in output:
        return f"does not compile:\n{output}"
    if status != 1:  # 1 is pytest's word for tests that ran and failed
        return f"pytest ended with {status}:\n{output}"
    return None


CAUGHT, COSTS_SPEED, SURVIVED = "caught", "costs speed", "SURVIVED"
SAME, NO_PROGRAM = "same machine code", "does not compile"

SPEED = ("test_figures",)
"""The tests that say of a mutant which no other notices whether it costs speed."""

NOT_FOUND = 4
"""pytest's exit status for names of tests that there are not."""


def fate(mutant: Mutant, reach: Reach, sound: Path, copy: Path) -> tuple[str, str]:
    """Say what became of a mutant in a copy of the checkout, and which test noticed; mend the copy again."""
    text = (sound / mutant.file).read_text()
    (copy / mutant.file).write_text(mutant.breaks(text))
    done: set[str] = set()
    try:
        for tests in filter(None, reached(mutant, reach, sound, copy)):
            (copy / "tests.txt").write_text("\n".join(tests))
            limit = 10 + 10 * max([reach.seconds[test] for test in tests])
            options = "-x", "--all", "-p", "reach", f"--most-seconds={limit}"
            status, output = run_tests(copy, ["@tests.txt"], *options)
            if status == NOT_FOUND:  # the names of some are of what a planner says
                status, output = run_tests(copy, sorted({test.partition("::")[0] for test in tests}), *options)
            if mutant.file.startswith("kernels/") and re.search(r"\b(BuildError|CompileError)\b", output):
                return NO_PROGRAM, ""
            if status:
                return CAUGHT, first_failure(status, output)
            done.update(tests)
        if mutant.file.startswith(("kernels/", "gpufold/gpu/")):
            tests = [test for test in reach.seconds if Path(test.partition("::")[0]).stem in SPEED]
            (copy / "tests.txt").write_text("\n".join(tests))
            status, output = run_tests(copy, ["@tests.txt"], "-x", "--all")
            if status:
                return COSTS_SPEED, first_failure(status, output)
        return SURVIVED, f"{len(done)} tests"
    except SameMachineCode:
        return SAME, ""
    except CompileError:
        return NO_PROGRAM, ""
    finally:
        (copy / mutant.file).write_text(text)


def first_failure(status: int, output: str) -> str:
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return found[1] if found else f"pytest ended with {status}"


def reached(mutant: Mutant, reach: Reach, sound: Path, copy: Path) -> Iterator[list[str]]:
    """Yield the tests that a mutant may change, some of them first; of a kernel if it changes PTX of one like it."""
    given: set[str] = set()
    kernels = reach.of_file(sound / mutant.file) if mutant.file.startswith("kernels/") else []

    def in_turns(tests: set[str], most: int) -> list[str]:
        new = {test for test in tests - given if Path(test.partition("::")[0]).stem not in SPEED}
        given.update(order := reach.in_turns(new, kernels)[:most])
        return order

    tests = set().union(*map(reach.kernels.__getitem__, kernels), reach.of_line(mutant.file, mutant.line))
    yield in_turns(tests, FIRST)
    if kernels:
        changed = [each for each in kernels[:SAMPLED] if ptx(each, sound) != ptx.__wrapped__(each, copy)]
        if not changed:
            raise SameMachineCode
        yield in_turns(set().union(*map(reach.kernels.__getitem__, changed)), 2 * FIRST)
        symbols = {symbol for _, symbol, _ in changed}
        tests = set().union(*(reach.kernels[each] for each in kernels if each[1] in symbols))
    yield in_turns(tests, MOST)


class SameMachineCode(Exception):
    """The machine code of the kernels that a mutant is a part of stays as it was."""


FIRST, MOST = 8, 150
"""How many tests run before anybody looks which kernels a mutant changes, and in all: some of each test function."""

SAMPLED = 32
"""So many specialisations are compiled, of each kernel function one before its next."""


def random_mutants(count: int, seed: int, folder: Path) -> int:
    """Draw mutants until so many compile, and print what becomes of each and the score.

    In the folder lie the checkout that they are drawn from, what its tests reach, and results: what is found there is
    not done again.
    """
    sound, records, results = folder / "checkout", folder / "reach", folder / f"results-{seed}.jsonl"
    copies = Queue()
    if not sound.exists():
        copy_checkout(sound)
    for number in range(WORKERS):
        copies.put(shutil.copytree(sound, folder / f"copy-{number}", dirs_exist_ok=True))
    if not records.exists():
        print("recording what each test reaches", flush=True)
        (begun := folder / "begun").mkdir(exist_ok=True)
        recording = "-p", "xdist", "-n", str(WORKERS), "--dist", "worksteal", "-p", "reach", f"--reach={begun}"
        run_tests(sound, [], *recording, *(f"--ignore-glob={name}" for name in WITHOUT))
        begun.rename(records)
    reach = Reach.recorded(records)
    lines = results.read_text().splitlines() if results.exists() else []
    known = {tuple(mutant): (what, test) for mutant, what, test in map(json.loads, lines)}

    def judge(mutant: Mutant) -> tuple[str, str]:
        if mutant not in known:
            copy = copies.get()
            try:
                known[mutant] = fate(mutant, reach, sound, copy)
            finally:
                copies.put(copy)
            with results.open("a") as file:
                file.write(json.dumps((mutant, *known[mutant])) + "\n")
        return known[mutant]

    score, drawn = Counter(), draw(sound, seed)
    with ThreadPoolExecutor(WORKERS) as workers:
        while some := list(islice(drawn, count - score.total() + score[NO_PROGRAM])):
            for mutant, (what, test) in zip(some, workers.map(judge, some), strict=True):
                score[what] += 1
                print(f"{what:18}  {mutant}\n{'':20}{test}", flush=True)
    changing = score[CAUGHT] + score[SURVIVED]
    print(f"seed {seed}: {score[CAUGHT]} of {changing} mutants caught; {score[COSTS_SPEED]} more cost speed alone,")
    print(f"{score[SAME]} leave the machine code of {SAMPLED} specialisations as it was")
    return int(score[SURVIVED] > 0)


WORKERS = 2
WITHOUT = "*test_torch*", "*test_peers*", "*clients*", "*test_gpu_session*"
"""Modules that take no part: of packages that `make test` does not install, and of this."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Break the code on purpose, and see which test notices.")
    parser.add_argument("--random", type=int, metavar="N", help="draw so many mechanical mutants instead")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--folder", type=Path, help="what a draw leaves, and goes on with when it is asked for again")
    parser.add_argument("-k", dest="words", default="", help="only faults with these words in name, file or test")
    options = parser.parse_args()
    if options.random:
        with tempfile.TemporaryDirectory() as folder:
            return random_mutants(options.random, options.seed, options.folder or Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        sound = Path(folder)
        copy_checkout(sound)
        wanted = [fault for fault in FAULTS if options.words in f"{fault.name} {fault.file} {fault.test}"]
        faults = [fault for fault in wanted if fault in set(of_this_machine())]
        if len(faults) < len(wanted):
            print(f"{len(wanted) - len(faults)} faults of gpufold.torch left out: torch is not installed")
        if not faults:
            parser.error(f"no fault has {options.words!r} in its name, file or test")
        for fault in faults:
            fault.breaks((sound / fault.file).read_text())
        status, output = run_tests(sound, sorted({fault.test for fault in faults}))
        if status:
            print(f"{output}\nThe tests must pass where there is no fault.")
            return 1
        survivors = 0
        with ThreadPoolExecutor(2) as workers:
            reasons = workers.map(survives, faults, [sound] * len(faults))
            for fault, reason in zip(faults, reasons, strict=True):
                survivors += reason is not None
                print(f"{'caught' if reason is None else 'SURVIVED':8}  {fault.name}  ({fault.file})", flush=True)
                print(f"          {fault.test if reason is None else reason}", flush=True)
    print(f"{len(faults) - survivors} of {len(faults)} faults caught")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
