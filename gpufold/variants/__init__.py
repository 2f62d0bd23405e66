"""The kernel variants of each operation, and what `variant="auto"` takes among them."""

from gpufold.plan import Variant
from gpufold.variants import col2im, im2col, space

VARIANTS: dict[str, dict[str, Variant]] = {
    "col2im": col2im.VARIANTS,
    "im2col": im2col.VARIANTS,
    "batch_to_space": space.BATCH_TO_SPACE,
    "space_to_batch": space.SPACE_TO_BATCH,
}

CHOICES: dict[str, Variant] = {
    "col2im": col2im.choose,
    "im2col": im2col.choose,
    "batch_to_space": space.choose_batch_to_space,
    "space_to_batch": space.choose_space_to_batch,
}
