"""torch.nn's fold, unfold and their modules for any number of spatial axes, with windows."""

from __future__ import annotations

from inspect import signature, unwrap
from typing import Any, NoReturn

import numpy as np
from torch import Tensor, nn, tensor
from torch.compiler import is_compiling
from torch.jit import is_tracing

from gpufold.arrays import library_of, native
from gpufold.calls import REDUCTIONS, Reduction
from gpufold.elements import ELEMENT_TYPES
from gpufold.geometry import Sizes
from gpufold.given import check_number, is_separable, shown, word
from gpufold.names import suggests_keywords
from gpufold.torch import functions
from gpufold.torch.door import overridable, refuse_script
from gpufold.torch.operators import checked_size, is_integer, per_axis
from gpufold.torch.tensors import check_tensor, weights_of

col2im, im2col = unwrap(functions.col2im), unwrap(functions.im2col)  # fold and unfold have the wrapper


@overridable
def fold(
    input: Tensor,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
    *,
    window: Any = None,
    reduction: Reduction = "sum",
    fill_value: complex | None = None,
) -> Tensor:
    """Fold columns into an image: torch.nn.functional.fold for any number of spatial axes, with windows and means.

    ``(N, C*prod(kernel_size), L) -> (N, C, *output_size)``, or both without ``N``.

    >>> import torch, gpufold.torch
    >>> columns = torch.ones(1, 4, 9)  # one channel of 2x2 blocks, 3x3 of them
    >>> gpufold.torch.fold(columns, 4, 2)[0, 0].tolist()
    [[1.0, 2.0, 2.0, 1.0], [2.0, 4.0, 4.0, 2.0], [2.0, 4.0, 4.0, 2.0], [1.0, 2.0, 2.0, 1.0]]

    Parameters
    ----------
    input : torch.Tensor
        Columns, of the dtypes of `col2im`; float16 and bfloat16 are summed in float32.
    output_size, kernel_size, dilation, padding, stride : int or sequence of int
        As in torch.nn.functional.fold. A sequence sets the number of spatial axes; if all are ints, there are two.
    window, reduction, fill_value
        As in `gpufold.torch.col2im`.

    See Also
    --------
    Fold : The same as a module.
    unfold : Extract the columns.
    """
    sizes = {"output_size": output_size, "kernel_size": kernel_size, "stride": stride, "padding": padding}
    rank = _rank("fold", dilation, sizes)
    size: Any = per_axis(output_size, rank) if is_integer(output_size) else output_size
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
        fill_value=fill_value,
    )


@overridable
def unfold(
    input: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1, *, window: Any = None
) -> Tensor:
    """Extract sliding blocks as columns: torch.nn.functional.unfold for any number of spatial axes, with windows.

    ``(N, C, *size) -> (N, C*prod(kernel_size), L)``, or both without ``N``.

    >>> import torch, gpufold.torch
    >>> gpufold.torch.unfold(torch.arange(5).reshape(1, 1, 5), (3,))
    tensor([[[0, 1, 2],
             [1, 2, 3],
             [2, 3, 4]]])

    Parameters
    ----------
    input : torch.Tensor
        Image, of the dtypes of `col2im`.
    kernel_size, dilation, padding, stride, window
        As in torch.nn.functional.unfold, in `fold`, and in `gpufold.torch.im2col`.

    See Also
    --------
    Unfold : The same as a module.
    fold : Fold the columns.
    """
    rank = _rank("unfold", dilation, {"kernel_size": kernel_size, "stride": stride, "padding": padding})
    kernel: Any = per_axis(kernel_size, rank) if is_integer(kernel_size) else kernel_size
    return im2col(
        input, kernel, strides=stride, dilations=dilation, pads_begin=padding, pads_end=padding, window=window
    )


def _rank(operation: str, dilation: Any, sizes: dict[str, Any]) -> int:
    """Return the number of spatial axes: the length of a sequence, else two. Raise for sizes that torch refuses."""
    rank = 0
    for name, value in (*sizes.items(), ("dilation", dilation)):
        if type(value) is int:
            continue
        integer = is_integer(value)
        if not integer and (not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0):
            hint = f"; pass int({name})" if getattr(value, "ndim", 1) == 0 else ""
            raise TypeError(
                f"{operation}: {name} must be an integer or a sequence of integers, got {shown(value)}{hint}"
            )
        if any([isinstance(each, bool) for each in ([value] if integer else value)]):
            raise TypeError(f"{operation}: {name} must be of integers, got the bool in {shown(value)}")
        rank = rank or (0 if integer else len(value))
    if any([type(each) is int and each == 0 for each in per_axis(dilation, 1)]):
        raise ValueError(
            f"{operation}: dilation must be at least 1, got {shown(dilation)}; gpufold.torch.col2im takes 0"
        )
    return rank or 2


class _Windowed(nn.Module):
    """A module that keeps a window: as a parameter if it is one, else as a non-persistent buffer."""

    def sized(self, *sizes: Any) -> Any:
        """Return copies of a module's sizes, in the order of its arguments, as integers.

        During tracing, sizes may be symbols and are returned unchanged.
        """
        if is_compiling() or is_tracing():
            return sizes
        named = zip(signature(type(self)).parameters, sizes, strict=False)
        integers: list[Any] = [checked_size(type(self).__name__, name, size) for name, size in named]
        return [[*whole] if isinstance(size, list) else whole for whole, size in zip(integers, sizes, strict=True)]

    def keep_window(self, window: Any) -> None:
        self.__module__ = nn.Fold.__module__  # of the instance: torch.fx treats torch's modules as leaves
        if isinstance(window, Tensor):
            check_tensor(type(self).__name__, "window", window)
        axes = weights_of(window)
        self._separable, self._axes = is_separable(window), len(axes)
        for axis, each in enumerate(axes):
            name = f"window_{axis}" if self._separable else "window"
            if isinstance(each, nn.Parameter):
                self.register_parameter(name, each)
            else:
                self.register_buffer(name, self._copied(each), persistent=False)

    def _copied(self, weights: Any) -> Tensor:
        """Return a copy of weights; tensors that require gradients are kept, so that they are learned."""
        name = type(self).__name__
        if isinstance(weights, Tensor):
            return weights if weights.requires_grad else weights.clone()
        if not isinstance(weights, np.ndarray):
            raise TypeError(
                f"{name}: window must be a torch.Tensor or numpy.ndarray, or a sequence of one per axis, got "
                f"{type(weights).__qualname__}{'; convert lists with torch.as_tensor' * isinstance(weights, list)}"
            )
        library_of(name, "window", weights)
        if weights.dtype.name not in ELEMENT_TYPES or weights.dtype.kind in "bc":
            raise TypeError(f"{name}: window must hold real numbers that torch has, got dtype {weights.dtype}")
        return tensor(weights.astype(np.float32 if weights.dtype.name == "bfloat16" else native(weights.dtype)))

    def kept_window(self) -> Any:
        if self._separable:
            return tuple(getattr(self, f"window_{axis}") for axis in range(self._axes))
        return self.window if self._axes else None

    def extra_repr(self) -> str:
        """Return the sizes, as torch.nn shows them, and the window's."""
        sizes: str = super().extra_repr()
        shapes = [tuple(each.shape) for each in weights_of(self.kept_window())]
        return f"{sizes}, window={' x '.join(map(str, shapes))}" if shapes else sizes

    def __prepare_scriptable__(self) -> NoReturn:
        refuse_script(type(self).__name__)


class Fold(_Windowed, nn.Fold):
    """A torch.nn.Fold for any number of spatial axes, with windows and means.

    >>> import torch, gpufold.torch
    >>> gpufold.torch.Fold((9,), (3,), stride=(2,))(torch.ones(2, 6, 4)).shape
    torch.Size([2, 2, 9])

    Parameters
    ----------
    output_size, kernel_size, dilation, padding, stride, window, reduction, fill_value
        As in `fold`; a window may also be a NumPy array. A Parameter is learned. Any other window becomes a
        non-persistent buffer: a copy, unless it requires a gradient.

    See Also
    --------
    fold : The same as a function.
    """

    @suggests_keywords
    def __init__(
        self,
        output_size: Sizes,
        kernel_size: Sizes,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        stride: Sizes = 1,
        *,
        window: Any = None,
        reduction: Reduction = "sum",
        fill_value: complex | None = None,
    ) -> None:
        super().__init__(*self.sized(output_size, kernel_size, dilation, padding, stride))
        self.keep_window(window)
        self.reduction, self.fill_value = word("Fold", "reduction", reduction, REDUCTIONS), fill_value
        if fill_value is not None:
            check_number("Fold", "fill_value", fill_value)

    def forward(self, input: Tensor) -> Tensor:
        """Return the folded image."""
        sizes = self.output_size, self.kernel_size, self.dilation, self.padding, self.stride
        options: dict[str, Any] = {"reduction": self.reduction, "fill_value": self.fill_value}
        return fold(input, *sizes, window=self.kept_window(), **options)

    def extra_repr(self) -> str:
        """Return the sizes, as torch.nn.Fold shows them, the window and the reduction."""
        sizes: str = super().extra_repr()
        return sizes + (f", reduction={self.reduction!r}" if self.reduction != "sum" else "")


class Unfold(_Windowed, nn.Unfold):
    """A torch.nn.Unfold for any number of spatial axes, with windows.

    >>> import torch, gpufold.torch
    >>> gpufold.torch.Unfold((3,), stride=(2,))(torch.ones(2, 2, 9)).shape
    torch.Size([2, 6, 4])

    Parameters
    ----------
    kernel_size, dilation, padding, stride, window
        As in `unfold`, and a window as in `Fold`.

    See Also
    --------
    unfold : The same as a function.
    """

    @suggests_keywords
    def __init__(
        self, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1, *, window: Any = None
    ) -> None:
        super().__init__(*self.sized(kernel_size, dilation, padding, stride))
        self.keep_window(window)

    def forward(self, input: Tensor) -> Tensor:
        """Return the columns of the image."""
        sizes = self.kernel_size, self.dilation, self.padding, self.stride
        return unfold(input, *sizes, window=self.kept_window())
