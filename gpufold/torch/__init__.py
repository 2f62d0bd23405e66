"""The functions of gpufold on torch tensors, and `fold` and `unfold` as torch.nn.functional has them, for any rank.

>>> import torch, gpufold.torch
>>> columns = torch.ones(1, 3, 4, requires_grad=True)  # one channel of 4 blocks of 3 samples
>>> signal = gpufold.torch.fold(columns, (9,), (3,), stride=(2,))
>>> signal.tolist()
[[[1.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 1.0]]]
>>> signal.square().sum().backward()
>>> columns.grad[0, :, 0].tolist()
[2.0, 2.0, 4.0]

Tensors on the CPU are computed where they lie, by the functions for NumPy arrays, and tensors on a CUDA device by the
same kernels as CuPy arrays, on torch's current stream: both with the bits that those have. Everything can be
differentiated, forward and backward and twice, transformed by torch.func, compiled and exported.
"""

from __future__ import annotations

from typing import Any

from gpufold import calls, extras

try:
    from torch import Tensor, __version__, library, nn
except ImportError as error:
    raise extras.missing("gpufold.torch", "torch", "torch") from error
if not hasattr(library, "register_vmap"):
    raise extras.outdated("gpufold.torch", "torch", __version__, "2.5")

from gpufold.torch import operators, rules, tensors

__all__ = [
    "Fold",
    "Unfold",
    "add_blocks",
    "add_blocks_",
    "array_to_blocks",
    "average",
    "batch_to_space",
    "blocks_to_array",
    "col2im",
    "fold",
    "im2col",
    "space_to_batch",
    "take_blocks",
    "unfold",
]


# ---------------------------------------------------------------------------------------------
# As in torch.nn


def fold(
    input: Tensor,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
    *,
    window: Any = None,
    reduction: str = "sum",
) -> Tensor:
    """Put sliding blocks back together: torch.nn.functional.fold for any number of spatial axes.

    ``(N, C*prod(kernel_size), L) -> (N, C, *output_size)``, or both without ``N``, where ``L`` is the product over the
    spatial axes of ``floor((output_size + 2*padding - dilation*(kernel_size - 1) - 1) / stride) + 1``.

    >>> import torch, gpufold.torch
    >>> columns = torch.ones(1, 4, 9)  # one channel of 2x2 blocks, 3x3 of them
    >>> gpufold.torch.fold(columns, 4, 2)[0, 0]
    tensor([[1., 2., 2., 1.],
            [2., 4., 4., 2.],
            [2., 4., 4., 2.],
            [1., 2., 2., 1.]])

    Parameters
    ----------
    input : torch.Tensor
        Columns of shape (N, C*prod(kernel_size), L) or (C*prod(kernel_size), L), of the dtypes of `col2im`.
    output_size, kernel_size, dilation, padding, stride : int or sequence of int
        As in torch.nn.functional.fold; one int means the same on every axis. There are as many spatial axes as a
        sequence among them has values, and two where all are ints, as torch has it.
    window, reduction
        As in `gpufold.torch.col2im`.

    Returns
    -------
    torch.Tensor
        The image, contiguous, of the dtype and device of `input`.

    Raises
    ------
    TypeError, ValueError
        As in `gpufold.torch.col2im`, in the words of its arguments.

    Notes
    -----
    Follows torch.nn.functional.fold, with sums of float16 and bfloat16 in float32.
    """
    rank = _rank(output_size, kernel_size, dilation, padding, stride)
    size = operators.per_axis(output_size, rank) if operators.is_integer(output_size) else output_size
    return col2im(
        input,
        size,
        kernel_size,
        strides=stride,
        dilations=dilation,
        pads_begin=padding,
        pads_end=padding,
        reduction=reduction,
        window=window,
    )


def unfold(
    input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1, *, window: Any = None
) -> Tensor:
    """Take sliding blocks out of an image: torch.nn.functional.unfold for any number of spatial axes.

    ``(N, C, *size) -> (N, C*prod(kernel_size), L)``, or both without ``N``, where ``L`` is the product over the
    spatial axes of ``floor((size + 2*padding - dilation*(kernel_size - 1) - 1) / stride) + 1``.

    >>> import torch, gpufold.torch
    >>> gpufold.torch.unfold(torch.arange(5).reshape(1, 1, 5), (3,))
    tensor([[[0, 1, 2],
             [1, 2, 3],
             [2, 3, 4]]])

    Parameters
    ----------
    input : torch.Tensor
        Image of shape (N, C, *size) or (C, *size), of the dtypes of `col2im`.
    kernel_size, dilation, padding, stride : int or sequence of int
        As in torch.nn.functional.unfold; one int means the same on every axis. There are as many spatial axes as a
        sequence among them has values, and two where all are ints, as torch has it.
    window
        As in `gpufold.torch.im2col`.

    Returns
    -------
    torch.Tensor
        The columns, contiguous, of the dtype and device of `input`.

    Raises
    ------
    TypeError, ValueError
        As in `gpufold.torch.im2col`, in the words of its arguments.

    Notes
    -----
    Follows torch.nn.functional.unfold.
    """
    rank = _rank(kernel_size, dilation, padding, stride)
    kernel = operators.per_axis(kernel_size, rank) if operators.is_integer(kernel_size) else kernel_size
    return im2col(
        input, kernel, strides=stride, dilations=dilation, pads_begin=padding, pads_end=padding, window=window
    )


def _rank(*sizes: Any) -> int:
    """Return the number of spatial axes: what a sequence says, else torch's two."""
    for value in sizes:
        if not operators.is_integer(value) and hasattr(value, "__len__"):
            return len(value)
    return 2


class _Windowed(nn.Module):
    """Keeps a window: as a parameter where it is one, else as a buffer that is not saved."""

    def __init__(self, window: Any) -> None:
        super().__init__()
        self._separable = window is not None and not isinstance(window, Tensor)
        self._axes = 0
        for each in () if window is None else window if self._separable else (window,):
            name = f"window_{self._axes}" if self._separable else "window"
            if isinstance(each, nn.Parameter):
                self.register_parameter(name, each)
            else:
                self.register_buffer(name, each, persistent=False)
            self._axes += 1

    def _window(self) -> Any:
        if self._separable:
            return tuple(getattr(self, f"window_{axis}") for axis in range(self._axes))
        return self.window if self._axes else None


class Fold(_Windowed):
    """A module that puts sliding blocks back together: torch.nn.Fold for any number of spatial axes.

    ``(N, C*prod(kernel_size), L) -> (N, C, *output_size)``, or both without ``N``, as in `fold`.

    >>> import torch, gpufold.torch
    >>> gpufold.torch.Fold((9,), (3,), stride=(2,))(torch.ones(2, 6, 4)).shape
    torch.Size([2, 2, 9])

    Parameters
    ----------
    output_size, kernel_size, dilation, padding, stride, window, reduction
        As in `fold`. A window that is a Parameter is learned, any other moves with the module as a buffer; neither is
        in the state of a module without one, which is that of torch.nn.Fold.

    Raises
    ------
    TypeError, ValueError
        Calling it raises as `fold` does.

    Notes
    -----
    Follows torch.nn.Fold.
    """

    def __init__(
        self,
        output_size: Any,
        kernel_size: Any,
        dilation: Any = 1,
        padding: Any = 0,
        stride: Any = 1,
        *,
        window: Any = None,
        reduction: str = "sum",
    ) -> None:
        super().__init__(window)
        self.output_size = output_size
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride
        self.reduction = reduction

    def forward(self, input: Tensor) -> Tensor:
        """Return the image that the columns are of."""
        return fold(
            input,
            self.output_size,
            self.kernel_size,
            self.dilation,
            self.padding,
            self.stride,
            window=self._window(),
            reduction=self.reduction,
        )

    def extra_repr(self) -> str:
        """Return the sizes, as torch.nn.Fold shows them."""
        return (
            f"output_size={self.output_size}, kernel_size={self.kernel_size}, dilation={self.dilation}, "
            f"padding={self.padding}, stride={self.stride}"
            + (f", reduction={self.reduction!r}" if self.reduction != "sum" else "")
        )


class Unfold(_Windowed):
    """A module that takes sliding blocks out of an image: torch.nn.Unfold for any number of spatial axes.

    ``(N, C, *size) -> (N, C*prod(kernel_size), L)``, or both without ``N``, as in `unfold`.

    >>> import torch, gpufold.torch
    >>> gpufold.torch.Unfold((3,), stride=(2,))(torch.ones(2, 2, 9)).shape
    torch.Size([2, 6, 4])

    Parameters
    ----------
    kernel_size, dilation, padding, stride, window
        As in `unfold`, and a window as in `Fold`.

    Raises
    ------
    TypeError, ValueError
        Calling it raises as `unfold` does.

    Notes
    -----
    Follows torch.nn.Unfold.
    """

    def __init__(
        self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1, *, window: Any = None
    ) -> None:
        super().__init__(window)
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, input: Tensor) -> Tensor:
        """Return the columns of an image."""
        return unfold(input, self.kernel_size, self.dilation, self.padding, self.stride, window=self._window())

    def extra_repr(self) -> str:
        """Return the sizes, as torch.nn.Unfold shows them."""
        return f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"


# ---------------------------------------------------------------------------------------------
# As in gpufold


def col2im(
    data: Tensor,
    output_size: Any,
    kernel_size: Any,
    *,
    strides: Any = 1,
    dilations: Any = 1,
    pads_begin: Any = 0,
    pads_end: Any = 0,
    reduction: str = "sum",
    window: Any = None,
    dtype: Any = None,
    variant: str = "auto",
    deterministic: bool = True,
) -> Tensor:
    """Put sliding blocks back together into an image, adding where they overlap: `gpufold.col2im` on tensors.

    ``(N, C*prod(kernel_size), L) -> (N, C, *output_size)``, or both without ``N``, where ``L`` is the product over the
    spatial axes of ``floor((output_size + pads_begin + pads_end - dilations*(kernel_size - 1) - 1) / strides) + 1``.

    >>> import torch, gpufold.torch
    >>> columns = torch.ones(4, 9, dtype=torch.int32)  # one channel of 2x2 blocks, 3x3 of them
    >>> gpufold.torch.col2im(columns, (4, 4), (2, 2))[0, 0].tolist()
    [1, 2, 2, 1]

    Parameters
    ----------
    data : torch.Tensor
        Columns of shape (N, C*prod(kernel_size), L) or (C*prod(kernel_size), L), of any layout in memory, on the CPU
        or a CUDA device. bool, integers, float16, bfloat16, float32, float64, complex64, complex128.
    output_size, kernel_size, strides, dilations, pads_begin, pads_end, reduction, variant, deterministic
        As in `gpufold.col2im`.
    window : torch.Tensor or sequence of them, optional
        Real weights of a block's taps as in `gpufold.col2im`, on the device of `data`. Under a sum it has a gradient
        too, where it requires one.
    dtype : torch.dtype, optional
        The result's dtype: that of `data`, or a wider one as in `gpufold.col2im`.

    Returns
    -------
    torch.Tensor
        The image, contiguous, on the device of `data` and of its dtype or `dtype`.

    Raises
    ------
    TypeError, ValueError
        As in `gpufold.col2im`; ValueError also where a window requires a gradient and `reduction` is no sum.

    Notes
    -----
    Implements OpenVINO Col2Im-15 and ONNX Col2Im-18, for any number of spatial axes. Its gradient is `im2col`.
    """
    steps = kernel_size, strides, dilations, pads_begin, pads_end
    if rules.is_traced(data):
        tail = reduction, variant, deterministic
        return operators.trace("col2im", (data, window), (output_size, *steps), len(output_size), tail, dtype)
    call = calls.col2im(
        tensors.described("col2im", "data", data),
        output_size,
        *steps,
        reduction=reduction,
        window=window,
        dtype=tensors.DTYPES.get(dtype, dtype),
        variant=variant,
        deterministic=deterministic,
    )
    return rules.compute(call, data, window)


def im2col(
    image: Tensor,
    kernel_size: Any,
    *,
    strides: Any = 1,
    dilations: Any = 1,
    pads_begin: Any = 0,
    pads_end: Any = 0,
    window: Any = None,
    variant: str = "auto",
) -> Tensor:
    """Take sliding blocks out of an image, the adjoint of `col2im`: `gpufold.im2col` on tensors.

    ``(N, C, *size) -> (N, C*prod(kernel_size), L)``, or both without ``N``, where ``L`` is the product over the
    spatial axes of ``floor((size + pads_begin + pads_end - dilations*(kernel_size - 1) - 1) / strides) + 1``.

    >>> import torch, gpufold.torch
    >>> gpufold.torch.im2col(torch.arange(9).reshape(1, 3, 3), (2, 2))
    tensor([[0, 1, 3, 4],
            [1, 2, 4, 5],
            [3, 4, 6, 7],
            [4, 5, 7, 8]])

    Parameters
    ----------
    image : torch.Tensor
        Image of shape (N, C, *size) or (C, *size), of any layout in memory and of the dtypes of `col2im`.
    kernel_size, strides, dilations, pads_begin, pads_end, variant
        As in `gpufold.im2col`.
    window : torch.Tensor or sequence of them, optional
        Real weights of a block's taps, as in `col2im`; it has a gradient where it requires one.

    Returns
    -------
    torch.Tensor
        The columns, contiguous, of the dtype and device of `image`.

    Raises
    ------
    TypeError, ValueError
        As in `gpufold.im2col`.

    Notes
    -----
    The geometry is that of OpenVINO Col2Im-15 and ONNX Col2Im-18. Its gradient is `col2im`.
    """
    steps = strides, dilations, pads_begin, pads_end
    if rules.is_traced(image):
        return operators.trace(
            "im2col", (image, window), (kernel_size, *steps), len(kernel_size), ("sum", variant, True)
        )
    call = calls.im2col(
        tensors.described("im2col", "image", image), kernel_size, *steps, window=window, variant=variant
    )
    return rules.compute(call, image, window)


def blocks_to_array(
    blocks: Tensor,
    output_shape: Any,
    block_shape: Any,
    block_strides: Any,
    *,
    reduction: str = "sum",
    window: Any = None,
    dtype: Any = None,
    variant: str = "auto",
    deterministic: bool = True,
) -> Tensor:
    """Put sliding blocks back together, adding or averaging them: `gpufold.blocks_to_array` on tensors.

    ``(*lead, *num_blocks, *block_shape) -> output_shape``, which is ``(*lead, *size)``, where ``num_blocks`` is
    ``(size - block_shape) // block_strides + 1`` along each spatial axis.

    >>> import torch, gpufold.torch
    >>> blocks = gpufold.torch.array_to_blocks(torch.arange(7.0), (3,), (2,))
    >>> gpufold.torch.blocks_to_array(blocks, (7,), (3,), (2,))
    tensor([0., 1., 4., 3., 8., 5., 6.])
    >>> gpufold.torch.blocks_to_array(blocks, (7,), (3,), (2,), reduction="mean")
    tensor([0., 1., 2., 3., 4., 5., 6.])

    Parameters
    ----------
    blocks : torch.Tensor
        Blocks of shape (*lead, *num_blocks, *block_shape), of any layout in memory and of the dtypes of `col2im`.
    output_shape, block_shape, block_strides, reduction, variant, deterministic
        As in `gpufold.blocks_to_array`.
    window, dtype
        As in `col2im`.

    Returns
    -------
    torch.Tensor
        The array, contiguous, on the device of `blocks` and of their dtype or `dtype`.

    Raises
    ------
    TypeError, ValueError
        As in `gpufold.blocks_to_array`; ValueError also where a window requires a gradient and `reduction` is no sum.

    Notes
    -----
    Names and layout are those of sigpy's function. Its gradient is `array_to_blocks`.
    """
    if rules.is_traced(blocks):
        sizes = output_shape, block_shape, block_strides
        tail = reduction, variant, deterministic
        return operators.trace("blocks_to_array", (blocks, window), sizes, len(block_shape), tail, dtype)
    call = calls.blocks_to_array(
        tensors.described("blocks_to_array", "blocks", blocks),
        output_shape,
        block_shape,
        block_strides,
        reduction=reduction,
        window=window,
        dtype=tensors.DTYPES.get(dtype, dtype),
        variant=variant,
        deterministic=deterministic,
    )
    return rules.compute(call, blocks, window)


def array_to_blocks(
    array: Tensor, block_shape: Any, block_strides: Any, *, window: Any = None, variant: str = "auto"
) -> Tensor:
    """Take sliding blocks out of an array, each a contiguous piece: `gpufold.array_to_blocks` on tensors.

    ``(*lead, *size) -> (*lead, *num_blocks, *block_shape)``, where ``num_blocks`` is
    ``(size - block_shape) // block_strides + 1`` along each spatial axis.

    >>> import torch, gpufold.torch
    >>> gpufold.torch.array_to_blocks(torch.arange(7), (3,), (2,))
    tensor([[0, 1, 2],
            [2, 3, 4],
            [4, 5, 6]])

    Parameters
    ----------
    array : torch.Tensor
        Array of shape (*lead, *size), of any layout in memory and of the dtypes of `col2im`.
    block_shape, block_strides, variant
        As in `gpufold.array_to_blocks`.
    window
        As in `im2col`.

    Returns
    -------
    torch.Tensor
        The blocks, contiguous, of the dtype and device of `array`.

    Raises
    ------
    TypeError, ValueError
        As in `gpufold.array_to_blocks`.

    Notes
    -----
    Names and layout are those of sigpy's function. Its gradient is `blocks_to_array`.
    """
    if rules.is_traced(array):
        sizes, tail = (block_shape, block_strides), ("sum", variant, True)
        return operators.trace("array_to_blocks", (array, window), sizes, len(block_shape), tail)
    described = tensors.described("array_to_blocks", "array", array)
    call = calls.array_to_blocks(described, block_shape, block_strides, window=window, variant=variant)
    return rules.compute(call, array, window)


def add_blocks(
    out: Tensor,
    blocks: Tensor,
    positions: Any,
    window: Any = None,
    *,
    variant: str = "auto",
    deterministic: bool = True,
) -> Tensor:
    """Return a tensor with blocks added to it, each at a position of its own: `gpufold.add_blocks` on tensors.

    ``(*lead, *size), (P, *lead, *block_shape), (P, rank) -> (*lead, *size)``

    >>> import torch, gpufold.torch
    >>> tiles = torch.ones(2, 2, 3)
    >>> gpufold.torch.add_blocks(torch.zeros(3, 6), tiles, [(0, 0), (1, 2)])
    tensor([[1., 1., 1., 0., 0., 0.],
            [1., 1., 2., 1., 1., 0.],
            [0., 0., 1., 1., 1., 0.]])

    Parameters
    ----------
    out : torch.Tensor
        Tensor of shape (*lead, *size) to add to, of the dtypes of `col2im`; it stays as it is.
    blocks : torch.Tensor
        Blocks of shape (P, *lead, *block_shape), of any layout, on the device of `out`, and of its dtype or of a
        narrower one as in `gpufold.add_blocks`.
    positions : torch.Tensor or sequence of sequences of int
        As in `gpufold.add_blocks`; a tensor is on the device of `out`, and none of its values is looked at.
    window
        As in `col2im`, with a gradient where it requires one.
    variant, deterministic
        As in `gpufold.add_blocks`.

    Returns
    -------
    torch.Tensor
        A new tensor, contiguous, of the shape, dtype and device of `out`.

    Raises
    ------
    TypeError, ValueError
        As in `gpufold.add_blocks`.

    Notes
    -----
    See `add_blocks_` for adding in place. It has gradients for `out`, `blocks` and the window.
    """
    if rules.is_traced(out, blocks):
        places = operators.as_positions("add_blocks", positions, out)
        return operators.trace("add_blocks", (blocks, window, places, out), (), 0, ("sum", variant, deterministic))
    array, given, places = _described_addition("add_blocks", out, blocks, positions)
    call = calls.add_blocks(array, given, places, window, variant=variant, deterministic=deterministic)
    return rules.compute(call, blocks, window, places, out)


def add_blocks_(
    out: Tensor,
    blocks: Tensor,
    positions: Any,
    window: Any = None,
    *,
    weight_out: Tensor | None = None,
    variant: str = "auto",
    deterministic: bool = True,
) -> Tensor:
    """Add blocks into a tensor in place, each at a position of its own: `gpufold.add_blocks` on tensors.

    ``(*lead, *size), (P, *lead, *block_shape), (P, rank) -> (*lead, *size)``

    >>> import torch, gpufold.torch
    >>> picture = torch.zeros(6)
    >>> gpufold.torch.add_blocks_(picture, torch.ones(2, 3), [(0,), (2,)]) is picture
    True
    >>> picture
    tensor([1., 1., 2., 1., 1., 0.])

    Parameters
    ----------
    out : torch.Tensor
        Tensor of shape (*lead, *size) to add to, of any layout, that shares no memory with `blocks`.
    blocks, positions, window, variant, deterministic
        As in `add_blocks`.
    weight_out : torch.Tensor, optional
        Tensor of shape (*size) to which the window, or one, is added in the same pass, as in `gpufold.add_blocks`.

    Returns
    -------
    torch.Tensor
        `out`.

    Raises
    ------
    TypeError, ValueError
        As in `gpufold.add_blocks`; ValueError also where `out` or `weight_out` is a leaf that requires a gradient.

    Notes
    -----
    Where gradients are asked for, it is ``out.copy_(add_blocks(out, ...))``: a new tensor more. That of a window goes
    through `weight_out` too.
    """
    if rules.is_traced(out, blocks):
        options: dict[str, Any] = {"variant": variant, "deterministic": deterministic}
        sums = add_blocks(out, blocks, positions, window, **options)
        if weight_out is not None:
            calls.check_weight_sums(*map(tensors.name_of, (out.dtype, blocks.dtype, weight_out.dtype)))
            ones = weight_out.new_ones(()).expand(blocks.shape[0], *blocks.shape[1 + out.ndim - weight_out.ndim :])
            weight_out.copy_(add_blocks(weight_out, ones, positions, window, **options))
        out.copy_(sums)
        return out
    array, given, places = _described_addition("add_blocks_", out, blocks, positions)
    weights = None
    if weight_out is not None:
        weights = tensors.described("add_blocks_", "weight_out", weight_out)
    call = calls.add_blocks(
        array, given, places, window, weight_out=weights, variant=variant, deterministic=deterministic
    )
    return rules.compute_in_place(call, out, blocks, window, places, weight_out)


def _described_addition(
    name: str, out: Tensor, blocks: Tensor, positions: Any
) -> tuple[tensors.Described, tensors.Described, Tensor]:
    array, given = tensors.described(name, "out", out), tensors.described(name, "blocks", blocks)
    return array, given, tensors.as_positions(name, positions, out, "out")


def take_blocks(
    array: Tensor,
    positions: Any,
    block_shape: Any,
    *,
    window: Any = None,
    mode: str = "constant",
    variant: str = "auto",
) -> Tensor:
    """Take blocks out of a tensor, each at a position of its own: `gpufold.take_blocks` on tensors.

    ``(*lead, *size), (P, rank) -> (P, *lead, *block_shape)``

    >>> import torch, gpufold.torch
    >>> picture = torch.arange(12).reshape(3, 4)
    >>> gpufold.torch.take_blocks(picture, torch.tensor([[0, 1], [2, -1]]), (2, 3))
    tensor([[[1, 2, 3],
             [5, 6, 7]],
    <BLANKLINE>
            [[0, 8, 9],
             [0, 0, 0]]])

    Parameters
    ----------
    array : torch.Tensor
        Tensor of shape (*lead, *size), of any layout in memory and of the dtypes of `col2im`.
    positions : torch.Tensor or sequence of sequences of int
        As in `gpufold.take_blocks`; a tensor is on the device of `array`, and none of its values is looked at.
    block_shape, mode, variant
        As in `gpufold.take_blocks`.
    window
        As in `im2col`.

    Returns
    -------
    torch.Tensor
        The blocks, contiguous, of the dtype and device of `array`.

    Raises
    ------
    TypeError, ValueError
        As in `gpufold.take_blocks`.

    Notes
    -----
    It has gradients for `array`, in both modes, and the window. Its gradient is `add_blocks`.
    """
    if rules.is_traced(array):
        places = operators.as_positions("take_blocks", positions, array)
        tail = mode, variant, True
        return operators.trace("take_blocks", (array, window, places, None), (block_shape,), places.shape[-1], tail)
    described = tensors.described("take_blocks", "array", array)
    places = tensors.as_positions("take_blocks", positions, array, "array")
    call = calls.take_blocks(described, places, block_shape, window=window, mode=mode, variant=variant)
    return rules.compute(call, array, window, places)


def average(numerator: Tensor, weight: Tensor, *, variant: str = "auto") -> Tensor:
    """Divide sums by the sums of their weights, zero where nothing landed: `gpufold.average` on tensors.

    ``(*lead, *size), (*size) -> (*lead, *size)``

    >>> import torch, gpufold.torch
    >>> gpufold.torch.average(torch.tensor([[6.0, 1.0, 0.0], [2.0, 5.0, 9.0]]), torch.tensor([2.0, 0.5, 0.0]))
    tensor([[ 3.,  2.,  0.],
            [ 1., 10.,  0.]])

    Parameters
    ----------
    numerator : torch.Tensor
        Sums of shape (*lead, *size), of floats or complex numbers and of any layout in memory.
    weight : torch.Tensor
        Real weights of numerator's last axes, for all leading axes alike, on its device.
    variant
        As in `gpufold.average`.

    Returns
    -------
    torch.Tensor
        The quotients, contiguous, of the dtype and device of `numerator`.

    Raises
    ------
    TypeError, ValueError
        As in `gpufold.average`.

    Notes
    -----
    It has gradients for both, of zero where the quotient is zero because nothing landed.
    """
    if rules.is_traced(numerator, weight):
        return operators.trace("average", (numerator, weight), (), 0, ("sum", variant, True))
    described = tensors.described("average", "numerator", numerator)
    call = calls.average(described, tensors.described("average", "weight", weight), variant=variant)
    return rules.compute(call, numerator, weight)


def batch_to_space(
    data: Tensor, block_shape: Any, crops_begin: Any = 0, crops_end: Any = 0, *, variant: str = "auto"
) -> Tensor:
    """Move blocks of the batch axis into the spatial axes, and crop: `gpufold.batch_to_space` on tensors.

    ``(B*prod(block_shape), D_1, ...) -> (B, D_1*block_shape[1] - crops_begin[1] - crops_end[1], ...)``

    >>> import torch, gpufold.torch
    >>> gpufold.torch.batch_to_space(torch.arange(12).reshape(4, 1, 3), (1, 2, 2), (0, 0, 1))
    tensor([[[ 3,  1,  4,  2,  5],
             [ 9,  7, 10,  8, 11]]])

    Parameters
    ----------
    data : torch.Tensor
        Tensor of shape (batch, D_1, ..., D_{n-1}) with n >= 2, of any layout in memory and of the dtypes of `col2im`.
    block_shape, crops_begin, crops_end, variant
        As in `gpufold.batch_to_space`.

    Returns
    -------
    torch.Tensor
        The result, contiguous, of the dtype and device of `data`.

    Raises
    ------
    TypeError, ValueError
        As in `gpufold.batch_to_space`.

    Notes
    -----
    Implements OpenVINO BatchToSpace-2, for any rank. Its gradient is `space_to_batch`.
    """
    if rules.is_traced(data):
        return operators.trace_space("batch_to_space", data, (block_shape, crops_begin, crops_end), variant)
    described = tensors.described("batch_to_space", "data", data)
    return rules.compute(calls.batch_to_space(described, block_shape, crops_begin, crops_end, variant=variant), data)


def space_to_batch(
    data: Tensor, block_shape: Any, pads_begin: Any = 0, pads_end: Any = 0, *, variant: str = "auto"
) -> Tensor:
    """Pad the spatial axes and move their blocks into the batch axis: `gpufold.space_to_batch` on tensors.

    ``(B, E_1, ...) -> (B*prod(block_shape), (E_1 + pads_begin[1] + pads_end[1]) / block_shape[1], ...)``

    >>> import torch, gpufold.torch
    >>> gpufold.torch.space_to_batch(torch.arange(1, 6).reshape(1, 5), (1, 2), (0, 1), (0, 0))
    tensor([[0, 2, 4],
            [1, 3, 5]])

    Parameters
    ----------
    data : torch.Tensor
        Tensor of shape (B, E_1, ..., E_{n-1}) with n >= 2, of any layout in memory and of the dtypes of `col2im`.
    block_shape, pads_begin, pads_end, variant
        As in `gpufold.space_to_batch`.

    Returns
    -------
    torch.Tensor
        The result, contiguous, of the dtype and device of `data`.

    Raises
    ------
    TypeError, ValueError
        As in `gpufold.space_to_batch`.

    Notes
    -----
    Implements OpenVINO SpaceToBatch-2, for any rank. Its gradient is `batch_to_space`.
    """
    if rules.is_traced(data):
        return operators.trace_space("space_to_batch", data, (block_shape, pads_begin, pads_end), variant)
    described = tensors.described("space_to_batch", "data", data)
    return rules.compute(calls.space_to_batch(described, block_shape, pads_begin, pads_end, variant=variant), data)
