"""Names of arguments in other libraries: errors suggest the keyword to use here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar, cast

from gpufold.geometry import as_integers
from gpufold.geometry.space import margins_of_pairs

KEYWORD_ALIASES = {
    "strides": ("stride", "block_strides", "blk_strides", "step", "steps", "hop", "hop_length", "hop_size"),
    "stride": ("strides", "step", "steps", "hop", "hop_length"),
    "kernel_size": (
        *("kernel", "kernel_shape", "block_shape", "blk_shape", "ksizes", "sizes", "patch_size", "win_length"),
    ),
    "block_shape": (
        *("kernel_size", "kernel", "blk_shape", "block_size", "roi", "roi_size", "tile", "tile_shape", "tile_size"),
        *("patch_size", "win_length", "nperseg"),
    ),
    "dilations": ("dilation", "rates", "rate"),
    "dilation": ("dilations", "rates", "rate"),
    "padding": ("pads_begin", "pads_end", "pads", "pad"),
    "output_size": ("output_shape", "image_shape", "shape", "size", "oshape", "image_size"),
    "output_shape": ("output_size", "image_shape", "oshape", "shape", "size", "image_size"),
    "size": ("shape", "image_size", "image_shape", "output_size", "output_shape"),
    "reduction": ("reduce", "normalize", "average", "norm"),
    "weights": ("weight", "block_weights", "tile_weights"),
    "window": ("weight", "weights", "importance_map", "weight_map", "mask"),
    "mode": ("padding_mode", "pad_mode", "border"),
    "positions": ("position", "locations", "coordinates", "coords", "starts"),
    "last": ("end",),
    "batch": ("batch_size", "sw_batch_size"),
    "function": ("predictor", "network", "model", "func", "fn"),
    "data": ("input", "x", "a", "array", "image", "columns", "blocks"),
    "image": ("input", "x", "a", "array", "data"),
    "array": ("input", "x", "a", "data", "image", "inputs", "volume"),
    "blocks": ("input", "x", "data", "patches", "tiles", "array"),
    "input": ("x", "data", "image", "array"),
    "numerator": ("data", "array", "sums"),
    "weight": ("weights", "denominator"),
}
"""The names that an argument has in other libraries."""

OVERLAP = ("overlap", "noverlap", "tile_overlap")

ADVICE = (
    (("padding", "paddings", "pads", "pad"), "pads_begin", "use pads_begin and pads_end"),
    (("crops", "crop"), "crops_begin", "use crops_begin and crops_end"),
    (OVERLAP, "block_shape", "use strides = block_shape - overlap, or block_shape * (1 - overlap) of a fraction"),
    (OVERLAP, "kernel_size", "use strides = kernel_size - overlap, or kernel_size * (1 - overlap) of a fraction"),
    (OVERLAP, "", "overlap is that of positions: see grid_positions"),
    (
        ("padding", "paddings", "pads", "pad", "pads_begin", "pads_end", "mode", "padding_mode"),
        "last",
        "use last='over', or numpy.pad before",
    ),
    (("axis", "axes", "dim", "data_format"), "", "spatial axes are the last ones: use numpy.moveaxis before"),
)
"""Names in other libraries, an argument that the function must have for this advice, and the advice."""

MARGINS = {
    "batch_to_space": ("crops", ("crops", "crop")),
    "space_to_batch": ("pads", ("paddings", "padding", "pads", "pad")),
}
"""Names of margins here and in TensorFlow."""

WHOSE = {
    "out": "numpy.ndarray or cupy.ndarray",
    "accumulate": "numpy.ndarray or cupy.ndarray",
    "chunks": "dask.array.Array",
}
"""Arguments that only some libraries support, and the arrays that they are for."""

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def suggests_keywords(function: FunctionT) -> FunctionT:
    """Return a function whose errors for unknown keywords and surplus arguments suggest what to use."""
    name = function.__qualname__.removesuffix(".__init__")
    name = f"onnx.{name}" if function.__module__ == "gpufold.onnx" else name

    @wraps(function)
    def answering(*given: Any, **named: Any) -> Any:
        try:
            return function(*given, **named)
        except TypeError:
            answer = misfit(function, name, given, named)
            if answer is None:
                raise
        raise answer

    return cast("FunctionT", answering)


@contextmanager
def speaking_for(name: str, *others: str) -> Iterator[None]:
    """Raise errors of the inner functions or classes `others` under the name of the calling function."""
    try:
        yield
    except Exception as error:
        other, _, said = str(error).partition(": ")
        if other.partition(".")[0] not in others:
            raise
        raise type(error)(f"{name}: {said}").with_traceback(error.__traceback__) from None


def renamed(said: str, names: Mapping[str, str]) -> str:
    """Return a message with names replaced."""
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), said)


def misfit(function: Callable[..., Any], name: str, given: Sequence[Any], named: Mapping[str, Any]) -> TypeError | None:
    """Return the error for arguments that do not fit a function's signature, or None if they fit."""
    parameters = signature(function).parameters
    unknown = [word for word in named if word not in parameters]
    if unknown:
        return unknown_keyword(function, name, unknown, advice=rewritten(name, given, named))
    places = [each.name for each in parameters.values() if each.kind is Parameter.POSITIONAL_OR_KEYWORD]
    others = [each.name for each in parameters.values() if each.kind is Parameter.KEYWORD_ONLY]
    if len(given) <= len(places) or any(each.kind is Parameter.VAR_POSITIONAL for each in parameters.values()):
        return None
    count, places = len(given) - len(places), [each for each in places if each != "self"]
    by_name = f"pass the others by name: {', '.join(others[:3])}{', ...' if others[3:] else ''}" if others else ""
    advice = rewritten(name, given, named) or by_name
    return TypeError(
        f"{name}: takes {len(places)} positional arguments ({', '.join(places)}), got {len(places) + count}"
        f"{advice and f'; {advice}'}"
    )


def rewritten(name: str, given: Sequence[Any], named: Mapping[str, Any]) -> str:
    """Return how to write a call in TensorFlow's form, with a block and pairs of margins that omit the batch; or "".

    >>> import numpy
    >>> rewritten("space_to_batch", (numpy.ones((1, 4, 5, 2)), 2), {"paddings": [[0, 0], [1, 0]]})
    'write space_to_batch(data, (1, 2, 2, 1), pads_begin=(0, 0, 1, 0), pads_end=(0, 0, 0, 0))'
    """
    margin, theirs = MARGINS.get(name, ("", ()))
    known = dict(zip(("data", "block_shape", "margins"), given, strict=False)) | dict(named)
    pairs = next((known[word] for word in ("margins", *theirs) if word in known), None)
    data = next((known[word] for word in ("data", *KEYWORD_ALIASES["data"]) if word in known), None)
    try:
        rank, count = len(data.shape), len(pairs)  # type: ignore[union-attr, arg-type]
        block = as_integers(name, "block_shape", known["block_shape"])
        begins, ends = margins_of_pairs(pairs, rank)
    except Exception:  # arguments are missing, or methods of a caller's class raise anything
        return ""
    block = (block,) * count if isinstance(block, int) else block
    block = (1, *block, *(1,) * (rank - 1 - count)) if len(block) == count else block
    return f"write {name}(data, {block}, {margin}_begin={begins}, {margin}_end={ends})"


def unknown_keyword(
    function: Callable[..., Any], name: str, given: Iterable[str], kind: type | None = None, advice: str = ""
) -> TypeError:
    """Return the error for keywords that a function, by its public name, does not have."""
    word, *_ = given
    if word in WHOSE and (kind is None or kind.__module__.partition(".")[0] not in WHOSE[word]):
        got = "" if kind is None else f", got a {kind.__module__}.{kind.__qualname__}"
        return TypeError(f"{name}: {word} is only for a {WHOSE[word]}{got}")
    parameters = [each for each in signature(function).parameters if each != "self"]
    return TypeError(f"{name}: unexpected keyword {word!r}; {advice or _advice(word, parameters)}")


def _advice(word: str, parameters: list[str]) -> str:
    """Return what to use in place of a keyword."""
    for here, elsewhere in KEYWORD_ALIASES.items():
        if word in elsewhere and here in parameters:
            return f"did you mean {here!r}?"
    for words, needed, advice in ADVICE:
        if word in words and (not needed or needed in parameters) and ("strides" in parameters or "=" not in advice):
            return advice
    close = get_close_matches(word, parameters, 1)
    return f"did you mean {close[0]!r}?" if close else f"the arguments are {', '.join(parameters)}"
