"""Images whose sides a network can halve: padded before it, cropped after it."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def pad(x: Float[Tensor, "b *shape"], multiple: int, mode: str) -> Tensor:
    """Pad height and width evenly on both sides to a multiple; `crop` undoes it."""
    if multiple == 1 or x.ndim < 4:
        return x
    extra = [-size % multiple for size in x.shape[-2:]]
    if not any(extra):
        return x
    (top, left), (high, wide) = [e // 2 for e in extra], extra
    sides = (left, wide - left, top, high - top)
    if mode == "zeros":
        return F.pad(x, sides)
    fits = wide - left < x.shape[-1] and high - top < x.shape[-2]
    return F.pad(x, sides, mode="reflect" if fits else "replicate")


def crop(x: Tensor, size: Sequence[int]) -> Tensor:
    """The centre of height and width `size`, as `pad` placed it."""
    top, left = [(have - want) // 2 for have, want in zip(x.shape[-2:], size, strict=True)]
    return x[..., top : top + size[0], left : left + size[1]]
