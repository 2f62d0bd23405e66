"""Col2Im under ONNX's names: the function, and the operator for ONNX's reference evaluator.

`Col2Im` needs the package onnx, which is imported on first access to the class.
"""

from __future__ import annotations

from typing import Any

from gpufold import extras, sliding
from gpufold.arrays import Array, ArrayT, library_of
from gpufold.calls import Variant
from gpufold.geometry import Extents, as_integers
from gpufold.given import shown
from gpufold.names import renamed, suggests_keywords

__all__ = ["Col2Im", "col2im"]  # noqa: F822  Col2Im is made by __getattr__

NAMES = {"col2im": "onnx.col2im", "data": "input", "output_size": "image_shape", "kernel_size": "block_shape"}
NAMES |= {"pads_begin": "begins of pads", "pads_end": "ends of pads"}
"""ONNX's names for the function col2im and its arguments."""


@suggests_keywords
def col2im(
    input: Array[ArrayT],
    image_shape: Extents,
    block_shape: Extents,
    dilations: Extents | None = None,
    pads: Extents | None = None,
    strides: Extents | None = None,
    *,
    out: Array[ArrayT] | None = None,
    variant: Variant = "auto",
    deterministic: bool = True,
) -> ArrayT:
    """Rearrange column blocks back into an image: ONNX's Col2Im, opset 18.

    ``(N, C*prod(block_shape), L) -> (N, C, *image_shape)``; see `gpufold.col2im` for ``L`` and the order of addition.

    >>> import numpy as np, gpufold.onnx
    >>> gpufold.onnx.col2im(np.ones((1, 4, 4)), [2, 2], [2, 2], pads=[0, 0, 1, 1])
    array([[[[1., 2.],
             [2., 4.]]]])

    Parameters
    ----------
    input : numpy.ndarray or cupy.ndarray
        Columns of shape (N, C*prod(block_shape), L), always batched, of the dtypes of `gpufold.col2im`.
    image_shape : sequence of int
        Pixels along each spatial axis. ONNX requires two or more values; one is accepted too.
    block_shape : sequence of int
        Elements of a block along each spatial axis.
    dilations, strides : sequence of int, optional
        One value per spatial axis. The default is 1.
    pads : sequence of int, optional
        Padding before every spatial axis, then after every one. The default is 0.
    out, variant, deterministic
        As in `gpufold.col2im`.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        The image, of the library, device and dtype of `input`.

    Raises
    ------
    TypeError, ValueError
        As in `gpufold.col2im`; ValueError also if `input` is not batched or `pads` does not have two values per
        spatial axis.

    See Also
    --------
    gpufold.col2im : With windows, averages and other dtypes of the result.
    """
    library_of("onnx.col2im", "input", input)
    if len(input.shape) != 3:
        raise ValueError(
            f"onnx.col2im: input must be (N, C*prod(block_shape), L), so of rank 3, "
            f"got rank {len(input.shape)}: shape {input.shape}"
        )
    image: Any = as_integers("onnx.col2im", "image_shape", image_shape)
    steps: Any = {"strides": 1 if strides is None else strides, "dilations": 1 if dilations is None else dilations}
    if pads is not None:
        values = as_integers("onnx.col2im", "pads", pads)
        rank = 0 if isinstance(image, int) else len(image)
        if isinstance(values, int) or len(values) != 2 * rank:
            raise ValueError(
                f"onnx.col2im: pads must have {2 * rank} values, the begins of the {rank} axes of image_shape and "
                f"then those after them, got {shown(values)}"
            )
        steps |= {"pads_begin": values[:rank], "pads_end": values[rank:]}
    try:
        result: ArrayT = sliding.col2im(
            input, image, block_shape, **steps, out=out, variant=variant, deterministic=deterministic
        )
    except (TypeError, ValueError, MemoryError) as error:
        if not str(error).startswith("col2im: "):  # NumPy's own, which may take other arguments than a message
            raise
        names = {"col2im": "onnx.col2im"} if isinstance(error, MemoryError) else NAMES
        raise type(error)(renamed(str(error), names)).with_traceback(error.__traceback__) from None
    return result


def __getattr__(name: str) -> Any:
    """Make the operator class on first use, so that importing this module needs no onnx."""
    if name != "Col2Im":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from onnx.reference.op_run import OpRun
    except ImportError as error:
        raise extras.missing("gpufold.onnx.Col2Im", "onnx", "onnx") from error

    class Col2Im(OpRun):
        """Col2Im for `onnx.reference.ReferenceEvaluator(model, new_ops=[gpufold.onnx.Col2Im])`.

        See Also
        --------
        col2im : The function.
        """

        op_domain = ""

        def _run(
            self, input: Any, image_shape: Any, block_shape: Any, dilations: Any, pads: Any, strides: Any
        ) -> tuple[Any]:
            strings = input.dtype == object  # as onnx has them
            given = input.astype(str) if strings else input
            image = col2im(given, image_shape, block_shape, dilations, pads, strides)
            return (image.astype(object) if strings else image,)

    return globals().setdefault(name, Col2Im)  # one class, whichever thread is first
