"""What arguments are called elsewhere: an unexpected keyword is answered with the name that it has here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

HERE = {
    "strides": ("stride", "block_strides", "blk_strides", "step", "steps", "hop", "hop_length", "hop_size"),
    "kernel_size": (
        "kernel",
        "kernel_shape",
        "block_shape",
        "blk_shape",
        "ksizes",
        "sizes",
        "patch_size",
        "win_length",
    ),
    "block_shape": ("kernel_size", "kernel", "blk_shape", "block_size", "roi_size", "tile", "tile_shape", "patch_size"),
    "dilations": ("dilation", "rates", "rate"),
    "pads_begin and pads_end": ("padding", "paddings", "pads", "pad"),
    "crops_begin and crops_end": ("crops", "crop"),
    "output_size": ("output_shape", "image_shape", "size", "oshape", "image_size"),
    "output_shape": ("output_size", "oshape", "shape", "size"),
    "strides, a block's extent less the overlap,": ("overlap", "noverlap", "tile_overlap"),
    "reduction": ("reduce", "normalize", "average", "norm"),
    "window": ("weight", "weights", "importance_map", "weight_map", "mask"),
    "mode": ("padding_mode", "pad_mode", "border"),
    "positions": ("position", "locations", "coordinates", "coords", "starts"),
    "last": ("end", "padding_mode", "mode"),
}
"""The names of arguments here, or what to say in their place, with those that they have in other libraries."""

WHOSE = {
    "out": "numpy.ndarray or cupy.ndarray",
    "accumulate": "numpy.ndarray or cupy.ndarray",
    "chunks": "dask.array.Array",
}
"""The arguments that not every kind of array has, and whose they are."""

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def answers(function: FunctionT) -> FunctionT:
    """Return a function that answers an unexpected keyword with the name that the argument has here."""
    name = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def answering(*given: Any, **named: Any) -> Any:
        try:
            return function(*given, **named)
        except TypeError:
            unexpected = [word for word in named if word not in signature(function).parameters]
            if not unexpected:
                raise
        raise misnamed(function, name, unexpected)

    taken: Any = answering
    return taken  # type: ignore[no-any-return]


@contextmanager
def speaking_for(name: str, *others: str) -> Iterator[None]:
    """Raise the errors of functions that a function calls under its own name.

    >>> with speaking_for("map_tiles", "take_blocks"):
    ...     raise ValueError("take_blocks: mode must be one of constant, edge, got 'zero'")
    Traceback (most recent call last):
    ValueError: map_tiles: mode must be one of constant, edge, got 'zero'
    """
    try:
        yield
    except Exception as error:
        other, _, said = str(error).partition(": ")
        if other not in others:
            raise
        raise type(error)(f"{name}: {said}").with_traceback(error.__traceback__) from None


def misnamed(function: Callable[..., Any], name: str, given: Iterable[str], kind: type | None = None) -> TypeError:
    """Return what to raise where a function, by its public name, is given keywords that it does not have.

    >>> import numpy, gpufold
    >>> print(misnamed(gpufold.im2col, "im2col", ["stride"]))
    im2col: there is no argument stride, it is strides here
    >>> print(misnamed(gpufold.im2col, "im2col", ["chunks"], numpy.ndarray))
    im2col: chunks is for a dask.array.Array alone, got a numpy.ndarray
    """
    word, *_ = given
    got = "" if kind is None else f", got a {kind.__module__}.{kind.__qualname__}"
    if word in WHOSE:
        return TypeError(f"{name}: {word} is for a {WHOSE[word]} alone{got}")
    parameters = [each for each in signature(function).parameters if each != "self"]
    for here, elsewhere in HERE.items():
        if word in elsewhere and here.split(" ")[0].rstrip(",") in parameters:
            return TypeError(f"{name}: there is no argument {word}, it is {here.rstrip(',')} here")
    return TypeError(f"{name}: there is no argument {word}, there are {', '.join(parameters)}")
