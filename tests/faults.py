"""Deliberate faults, each of which a named test must notice: `make faults`, or `make faults ARGS="-k words"`.

They are those that mechanical mutants cannot or seldom make: of inline PTX, barriers, locks, gradients, tensors and
numbers at the edge of their type; tests/mutants.py draws the others. Every fault is one replacement in a temporary copy
of the checkout, where that test then runs and must turn red, while it passes without the fault.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
VARIANTS = "gpufold/gpu/variants"

KERNELS = "tests/test_kernels.py::test_every_kernel_gives_the_bits_of_numpy"
STITCHER = "tests/test_stitcher.py::test_"
DASK = "tests/test_dask.py::test_"
PLANS = "tests/test_plans.py::test_"
FIGURES = "tests/test_figures.py::test_"
SOURCES = "tests/test_sources.py::test_"
TORCH = "tests/test_torch.py::test_"
LAUNCHED = "tests/test_torch_launch.py::test_"
REPEATED = "tests/test_torch_repeated.py::test_"
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


# fmt: off
FAULTS = (
    # --- kernels: instructions and annotations
    Fault("additions that flush denormals", "kernels/common.cuh",
          '    asm("add.rn.f32 %0, %1, %2;" : "=f"(result) : "f"(sum), "f"(value));', "    result = sum + value;",
          FIGURES + "machine_code_keeps_denormals[float-float-none]"),
    Fault("conversions that flush denormals", "kernels/common.cuh",
          '    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(number));', "    wide = number;",
          FIGURES + "machine_code_keeps_denormals[float-double-none]"),
    Fault("a question about a pointer to Booleans, on which NVRTC fails", "kernels/common.cuh",
          """    const void* any = address; // NVRTC fails on the question below where it is of Booleans
    asm("" : "+l"(any));
    __builtin_assume(__isGlobal(any));
    address = static_cast<Element*>(const_cast<void*>(any));
""",
          """    asm("" : "+l"(address));
    __builtin_assume(__isGlobal(address));
""",
          FIGURES + "every_kernel_compiles_for_every_dtype[add_blocks_binned.cu]"),
    Fault("products that are fused with additions", "kernels/common.cuh", "    return __dmul_rn(a, b);",
          "    return a * b;", FIGURES + "machine_code_rounds_products_before_it_adds_them[double]"),
    Fault("a word zeroed in the register of its address", "kernels/common.cuh",
          """mov.b64 %0, %3; @p ld.global.nc" L2_FETCH ".u64 %0, [%1];}"
            : "=&l"(word)""",
          """mov.b64 %0, %3; @p ld.global.nc" L2_FETCH ".u64 %0, [%1];}"
            : "=l"(word)""",
          SOURCES + "outputs_of_inline_ptx_share_no_register_with_inputs_read_after_them[common.cuh]"),
    Fault("an annotation that compilers ignore", "kernels/positions.cuh", "    TapWeight() = default;",
          "    __device__ TapWeight() = default;",
          SOURCES + "nvrtc_warns_of_nothing[add_blocks_output_driven.cu-75]"),
    # --- tensors
    Fault("a gradient that forgets what a mean divides by", "gpufold/adjoints.py",
          "geometry, gradient = call.geometry, _divided(xp, call, gradient, window)", "geometry = call.geometry",
          TORCH + "gradients[col2im-mean-float64]"),
    Fault("a divisor of zero that is not made safe first", "gpufold/adjoints.py",
          "xp.where(uncovered, 0.0, 1.0 / xp.where(uncovered, 1.0, divisor))", "1.0 / divisor",
          TORCH + "gradients[col2im-mean-with-gaps-float64]"),
    Fault("an edge without the gradient of what lies outside of it", "gpufold/adjoints.py",
          "xp.concatenate((first + begin.sum(axis, keepdims=True), rest), axis)", "xp.concatenate((first, rest), axis)",
          TORCH + "gradients[take_blocks-edge-float64]"),
    Fault("narrow blocks that are weighed and placed before they are widened", "gpufold/torch/autograd.py",
          '        call, data = call._replace(data_dtype=""), data.to(getattr(torch, call.dtype))\n',
          '        call, data = call._replace(data_dtype=""), data\n',
          TORCH + "sums_in_a_wider_dtype_are_those_of_converted_data[add_blocks-full-float32-float64]"),
    Fault("an addition in place that autograd does not see", "gpufold/torch/executing.py",
          "    if not tensor.is_inference():\n        increment_version(tensor)\n", "    pass\n",
          TORCH + "autograd_sees_what_is_added_in_place"),
    Fault("a window whose gradient is of one block", "gpufold/adjoints.py", ".sum((0, 2)).reshape(shape)",
          ".sum(0)[..., 0].reshape(shape)", TORCH + "gradients[col2im-full-float64]"),
    Fault("tangents that a guard does not see", "gpufold/torch/guards.py",
          "            and forward_ad._current_level < 0\n", "",
          REPEATED + "calls_with_and_without_tangents_and_transforms_say_nothing_of_each_other[given]"),
    Fault("pads of ONNX's Col2Im axis by axis", "gpufold/torch/exporting.py", '"pads": [*begins, *ends]}',
          '"pads": [*ends, *begins]}',
          "tests/test_torch_onnx.py::test_what_is_exported_computes_the_same[by trace-col2im]"),
    Fault("a trace that takes the answer for a constant", "gpufold/torch/tensors.py",
          "is_compiling() or is_tracing() or", "is_compiling() or",
          "tests/test_torch_trace.py::test_what_is_recorded_computes[col2im-trace-False]"),
    Fault("what was seen under no_grad taken for what has no gradient", "gpufold/torch/guards.py",
          "any([tensor.requires_grad for tensor in tensors])", "False",
          REPEATED + "a_call_that_records_a_gradient_is_checked_once[given]"),
    Fault("a kernel for aligned memory launched on any", "gpufold/torch/executing.py",
          "guards.kernel if guards is not None and aligned else None", "guards.kernel if guards is not None else None",
          LAUNCHED + "a_repeated_call_runs_the_plan_of_its_own_alignment[2]"),
    Fault("a launch on CuPy's stream instead of torch's", "gpufold/gpu/launch.py",
          "(*pointers, self.parameters), 0, stream)", "(*pointers, self.parameters))",
          LAUNCHED + "every_step_of_a_call_is_queued_on_torchs_stream_and_waited_for_by_none[col2im-gather-1]"),
    Fault("weights that kernels read as they came", "gpufold/torch/tensors.py",
          "tuple([as_kernel_weights(each, WEIGHTS[call.dtype], call.operation) for each in axes])", "tuple(axes)",
          REPEATED + "any_sequence_of_calls_gives_what_each_gives_alone[stand-in-0]"),
    Fault("sums in a wider dtype left to torch, which has none", "gpufold/torch/executing.py",
          ' and call.variant == "auto" and not call.data_dtype', ' and call.variant == "auto"',
          TORCH + "sums_in_a_wider_dtype_are_those_of_converted_data[col2im-symmetric-float32-float64]"),
    Fault("small sums under a transform that torch records as its own", "gpufold/torch/autograd.py",
          "of_torch(call, data) if recorded and not transformed else None",
          "of_torch(call, data) if recorded else None", REPEATED + "transforms_are_computed_here[vmap]"),
    Fault("small sums that torch computes unseen by a profiler", "gpufold/torch/autograd.py",
          "profiled(call, guards.of_torch, data) if is_profiling() else ", "",
          REPEATED + "the_profiler_names_calls_and_those_that_torch_computes"),
    Fault("gradients that the transforms around them do not see", "gpufold/torch/autograd.py",
          "with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True), _C._AutoDispatch", "with _C._AutoDispatch",
          TORCH + "transforms_of_functions[batch_to_space-hessian]"),
    Fault("saved tensors of a transform that has ended", "gpufold/torch/autograd.py",
          "given = [*map(alive, (data, window, positions, out))]", "given = [data, window, positions, out]",
          TORCH + "what_a_transform_saved_serves_after_it_ended[take_blocks]"),
    Fault("denormals that XLA's threads flush", "gpufold/jax/primitive.py", "with usual_mode():", "if True:",
          JAX + "denormals_stay_as_numpy_has_them"),
    Fault("tangents of a window that are added to what there is", "gpufold/adjoints.py",
          "into = xp.full(call.result_shape, 0, call.dtype, given)", "into = operands[3]",
          JAX + "gradients_tangents_and_theirs_are_those_of_differences[add_blocks-full-float64]"),
    Fault("cotangents with torch's conjugate", "gpufold/jax/primitive.py", "paired=lambda array: array,",
          "paired=jnp.conj,", JAX + "gradients_tangents_and_theirs_are_those_of_differences[col2im-full-complex128]"),
    Fault("channels beyond 32 bits", f"{VARIANTS}/positions.py", "        view.channels,\n        max(reach),",
          "        max(reach),", PLANS + "offsets_are_wide_from_the_first_element_that_needs_it"),
    Fault("memory between a struct's members as it was", "gpufold/gpu/parameters.py", "packed = np.zeros((), dtype)",
          "packed = np.empty((), dtype)", PLANS + "equal_structs_have_equal_bytes"),
    # --- weights
    Fault("products of weights that underflow in a kernel of col2im", "kernels/fusion.cuh",
          "        return at_least<least_exponent>(weight);", "        return weight;",
          KERNELS + "[col2im-bug-dilation-applied-twice-0]"),
    Fault("products of weights that underflow in NumPy", "gpufold/weights.py",
          "return library.where(small, library.sign(first) * library.sign(second) * least, product)", "return product",
          "tests/test_operations.py::test_least_squares_lose_no_element_either"),
    Fault("an infinite weight times the zero of a tap that does not exist", "kernels/fusion.cuh",
          "joined(or_zero(product, exists), weight)", "joined(product, weight)",
          KERNELS + "[col2im-stride-5-gather-awkward-0]"),
    Fault("an infinite weight times the zero of a row that does not exist", "kernels/fusion.cuh",
          "or_zero(weight, exists)", "weight", KERNELS + "[col2im-phases-gather-awkward-0]"),
    *(
        Fault(
            f"{bits} bits of a weight that are not shifted out where its tap does not exist",
            "kernels/window.cuh",
            f'"+{register}"(word) : "r"(distance)',
            f'"+{register}"(word) : "r"(0)',
            f"tests/test_ptx.py::test_machine_code_gives_the_bits_of_the_numpy_path[awkward-{name}weights-90]",
        )
        for bits, register, name in ((32, "r", ""), (64, "l", "double-"))
    ),
    Fault("a last row of blocks that is left out", "kernels/col2im_gather_blocks.cu",
          "if (within(block, p.blocks[above]))", "if (within(block, p.blocks[above] - 1))",
          KERNELS + "[col2im-blocks-in-several-segments-0]"),
    # --- blocks at positions of their own
    Fault("positions cut to 32 bits", "kernels/add_blocks_atomic.cu", "        const long long position =\n",
          "        const int position =\n", KERNELS + "[add_blocks-farthest-atomic-1]"),
    Fault("positions of blocks that are taken cut to 32 bits", "kernels/take_blocks_per_element.cu",
          "first_pixel(long long position", "first_pixel(int position", KERNELS + "[take_blocks-farthest-0]"),
    # --- stitching
    Fault("a stitcher whose methods do not wait for each other", "gpufold/stitching.py",
          "        with stitcher._lock:\n", "        with RLock():\n",
          STITCHER + "tiles_that_threads_add_are_all_there[mean-False]"),
    Fault("an addition that was interrupted and is not known to be", "gpufold/stitching.py",
          "            kept.torn = True  # from here", "            kept.torn = False  # from here",
          STITCHER + "a_batch_that_is_interrupted_while_it_is_added_is_known_to_be_torn[1-KeyboardInterrupt]"),
    Fault("a window that stays its caller's", "gpufold/backends.py", "        return weights.copy()\n",
          "        return weights\n", STITCHER + "batches_never_show"),
    # --- dask
    Fault("blocks of a chunk that are added in another order", "gpufold/dask/chunks.py",
          """    order = np.argsort(pair, kind="stable")""", """    order = np.lexsort((-block, pair))""",
          DASK + "named_cases_have_the_bits_of_eager_calls[add_blocks-all-in-one-place]"),
    Fault("weights that go with the leading axes of sums", "gpufold/dask/positions.py",
          "    of_weight = axes[len(geometry_of(call, AverageGeometry).lead) :]\n",
          "    of_weight = axes[: weight.ndim]\n",
          DASK + "named_cases_have_the_bits_of_eager_calls[average-planes]"),
    Fault("a chunk that waits for blocks beside it", "gpufold/dask/chunks.py",
          """        first = np.searchsorted(ends, begin, "right")""",
          """        first = np.searchsorted(ends, begin, "left")""",
          DASK + "a_chunk_depends_on_what_reaches_it_and_on_nothing_else[add_blocks----]"),
    Fault("blocks at a seam given to one side only", "gpufold/dask/sliding.py",
          "[axis.section(span.start, span.stop)[1] for span in spans_of(sizes)]\n        for axis, sizes in zip(axes,",
          "[axis.section(span.start + axis.stride, span.stop)[1] for span in spans_of(sizes)]\n"
        "        for axis, sizes in zip(axes,",
          DASK + "random_calls_have_the_bits_of_eager_calls[random_blocks_case]"),
    Fault("a window that its caller may still change", "gpufold/dask/chunks.py",
          "tuple(each.copy() for each in weights)", "tuple(weights)",
          DASK + "what_a_caller_changes_after_the_call_changes_no_result[stitch-full]"),
    # --- the planner
    Fault("a step from a plane to the next that no offset holds", f"{VARIANTS}/col2im.py",
          "view.planes, *planes, *steps", "view.planes, *steps",
          PLANS + "offsets_are_wide_from_the_first_element_that_needs_it"),
)
# fmt: on


PTX = "tests/test_ptx.py::test_machine_code_gives_the_bits_of_the_numpy_path"

INLINE_PTX = {
    "bits.cuh": (
        ("%3, 0xd8;", "%3, 0xca;", "add_blocks_binned"),
        ("bfind.u32 %0, %2;", "clz.b32 %0, %2;", "add_blocks_binned"),
        ("    word ^= bit;\n", "", "add_blocks_binned"),
    ),
    "bins.cu": (
        ("@p atom.global.add.u64 %0, [%1], 1;", "@p atom.global.add.u64 %0, [%1], 0;", "wide-offsets"),
        ("@p atom.global.add.u32 %0, [%1], 1;", "@p atom.global.add.u32 %0, [%1], 0;", "binned"),
    ),
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
        ("div.rn.f32", "mul.rn.f32", "average_elementwise"),
        ("mov.b32 %0, %3; @p ld.global.nc.u8", "mov.b32 %0, 1; @p ld.global.nc.u8", "bytes"),
        ("mov.b32 %0, %3; @p ld.global.nc.u16", "mov.b32 %0, 1; @p ld.global.nc.u16", "halfwords"),
        ("mov.b32 %0, %3; @p ld.global.nc.u32", "mov.b32 %0, 1; @p ld.global.nc.u32", "col2im_gather"),
        ("mov.b64 %0, %3; @p ld.global.nc.u64", "mov.b64 %0, 1; @p ld.global.nc.u64", "zeros-of-pads"),
        (
            '%5; "\n            "@p ld.global.nc.v2.u64 {%0',
            '%5; "\n            "@p ld.global.nc.v2.u64 {%1',
            "words-of-pixels",
        ),
        *(
            (f"0; @p ld.global.{kind} %0, [%1];", f"1; @p ld.global.{kind} %0, [%1];", f"words-of-blocks-{kind}")
            for kind in ("u8", "u16", "u32", "u64")
        ),
        ('%1, 0; "\n                     "@p ld', '%1, 1; "\n                     "@p ld', "words-of-blocks"),
        ("0; @p ld.global.nc.u32 %0, [%1];", "0; @p ld.global.nc.u32 %0, [%1+4];", "im2col_packed"),
        ("0; @p ld.global.nc.u64 %0, [%1];", "0; @p ld.global.nc.u64 %0, [%1+8];", "words-of-eight"),
        ("0; @p ld.global.nc.v2.u64 {%0, %1}", "0; @p ld.global.nc.v2.u64 {%1, %0}", "batch_to_space_packed"),
        ("st.global.u8 [%0]", "st.global.u8 [%0+1]", "bytes"),
        ("st.global.u16 [%0]", "st.global.u16 [%0+2]", "halfwords"),
        ("st.global.u32 [%0]", "st.global.u32 [%0+4]", "col2im_gather"),
        ("st.global.u64 [%0]", "st.global.u64 [%0+8]", "pairs"),
        ("st.global.v2.u64 [%0], {%1, %2}", "st.global.v2.u64 [%0], {%2, %1}", "im2col_packed"),
    ),
}
"""Of each file: what stands there once, what replaces it, and the case of the machine code's test that must notice."""

BARRIER = re.compile(r"__sync\w+\(\);")
BARRIERS = {
    "add_blocks_binned.cu": ("add_blocks-long-row", "add_blocks-single-elements"),
    "add_blocks_output_driven.cu": ("add_blocks-every-border", "add_blocks-farthest"),
    "batch_to_space_packed.cu": ("batch_to_space-nchw-odd-crop", "batch_to_space-openvino-page-2d"),
    "bins.cu": (
        *["add_blocks-more-than-a-block-of-threads-tests-binned-awkward"] * 5,
        "add_blocks-more-blocks-than-marks",
    ),
    "col2im_gather.cu": ("col2im-stride-3",),
    "col2im_gather_blocks.cu": ("col2im-one-tile-of-several-rows", "col2im-volume"),
    "im2col_packed.cu": ("im2col-blocks-at-a-stride",),
    "im2col_runs.cu": ("im2col-3d-runs", "im2col-run-after-run"),
    "im2col_staged.cu": ("im2col-3d-staged", "im2col-row-after-row"),
    "packing.cuh": ("im2col-blocks-of-words",),
}
"""Of each file: for one barrier after the other, the case that must notice that it is gone."""


def without_barriers() -> Iterator[Fault]:
    for path in sorted((CHECKOUT / "kernels").glob("*.cu*")):
        found = BARRIER.finditer(text := path.read_text())
        for number, (barrier, case) in enumerate(zip(found, BARRIERS.get(path.name, ()), strict=True)):
            before = text[: barrier.start()]
            name, file = f"no barrier {number} in {path.name}", f"kernels/{path.name}"
            yield Fault(name, file, before + barrier[0], before + ";", f"{KERNELS}[{case}-0]")


FAULTS += tuple(without_barriers())


def as_written(text: str) -> str:
    """Return PTX as it stands in a kernel, which says in front of a width what else is fetched."""
    return text.replace("ld.global.nc.", 'ld.global.nc" L2_FETCH ".')


FAULTS += tuple(
    Fault(f"inline PTX of {file}: {old.strip()}", f"kernels/{file}", *map(as_written, (old, new)), f"{PTX}[{case}-90]")
    for file, faults in INLINE_PTX.items()
    for old, new, case in faults
)


def run_tests(folder: Path, tests: list[str], *options: str, seconds: float | None = None) -> tuple[int, str]:
    """Run tests on a copy of the checkout, for so long at most; give pytest's exit status and output.

    Without the plugins that other packages bring, whose imports take longer than most tests.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(options or ["--all"]), *tests]
    environment = os.environ | {"PYTHONPATH": "tests", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    given = {"cwd": folder, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    try:
        done = subprocess.run(command, **given, timeout=seconds)
    except subprocess.TimeoutExpired:
        return ENDLESS, "a test goes on for ever"
    return done.returncode, done.stdout


ENDLESS = 124
"""The exit status of tests that were stopped."""

NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "_build", "dist")


def copy_checkout(folder: Path) -> None:
    """Copy the checkout, but what is made in it; faults go into copies of this copy alone."""

    def left_out(parent: str, names: list[str]) -> set[str]:
        holds = {name for name in names if folder.resolve().is_relative_to(Path(parent, name).resolve())}
        return holds | set(NOT_COPIED(parent, names))

    shutil.copytree(CHECKOUT, folder, ignore=left_out)


@contextmanager
def broken(sound: Path, fault) -> Iterator[Path]:
    """Yield a copy of the checkout with a fault or a mutant in it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(sound, Path(folder) / "checkout")
        (copy / fault.file).write_text(fault.breaks((copy / fault.file).read_text()))
        yield copy


each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))


@pytest.fixture(scope="session")
def sound(tmp_path_factory):
    """A copy of the checkout as it is."""
    copy_checkout(folder := tmp_path_factory.mktemp("sound") / "checkout")
    return folder


@each_fault
def test_its_test_notices(fault, sound):
    if "test_torch" in fault.test:
        pytest.importorskip("torch")
    status, output = run_tests(sound, [fault.test], "--many")
    assert status == 0, f"The test must pass where there is no fault.\n{output}"
    with broken(sound, fault) as copy:
        status, output = run_tests(copy, [fault.test], "-x", "--many")
    assert "BuildError" not in output, f"does not compile:\n{output}"
    assert status == 1, output  # pytest's word for tests that ran and failed
