r"""How an image becomes a measurement, and what the measurement leaves open.

A measurement $A$ turns a clean image $x$ into $y$. Two more maps make every answer of a tree agree
with $y$ by construction (App. A.2, "we only learned the required residual from the input"):

- `naive(y)`, the plainest image that agrees with $y$;
- `project(v)`, $P v$, which removes from $v$ whatever $A$ can see: $A P = 0$, $P^2 = P$.

A prediction is $\hat x = \mathrm{naive}(y) + P(\text{network})$, so that $A \hat x = y$ whatever
the network says. Where no such $P$ exists (noise, paired channels) it is the identity.

All maps work on any leading axes: one image, a batch, or a batch of leaves. A measurement of your
own overrides what differs, in the attributes too: nobody asks for its class.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from posterior_trees.errors import InputError


class Measurement(nn.Module):
    """Base of all measurements: an identity that leaves everything open.

    >>> class Mirror(Measurement):  # one of your own
    ...     def forward(self, x, generator=None):
    ...         return x.flip(-1)
    >>> Mirror()(torch.tensor([[[1.0, 2.0]]]))
    tensor([[[2., 1.]]])
    """

    is_random = False
    """Whether it adds noise."""
    is_exact = True
    """Whether {x : A x = y} is known, so that `impose` makes any image agree with y."""
    is_computable = True
    """Whether it can be made from a clean image; that of pairs comes with the data."""
    is_picture_clean = False
    """Whether a user's picture is the clean image, to be measured, and not the measurement."""
    noise: float = 0.0
    """Standard deviation of the noise."""
    block: int = 1
    """What the sides of a clean image must be divisible by."""
    gain: float = 1.0
    r"""$c$ of $A A^\top = c\,I$, the square of all singular values of $A$."""
    action = "measure it"
    """What it does to a picture, in words for a button."""
    hole: Tensor | None
    """The hidden pixels (True), where it hides some."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("hole", None, persistent=False)

    @property
    def size(self) -> tuple[int, ...]:
        """Height and width of the only pictures that it takes; () if it takes any."""
        return () if self.hole is None else tuple(self.hole.shape[-2:])

    @property
    def open_share(self) -> Tensor | float:
        """How much of every pixel is left open."""
        return 1.0 if self.hole is None else self.hole.float()

    def forward(
        self, x: Float[Tensor, "b *shape"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "b *shape2"]:
        """Measure clean images, $y = A x$ (plus noise drawn from `generator`)."""
        return x

    def naive(self, y: Float[Tensor, "*b2"]) -> Float[Tensor, "*b3"]:
        """The plainest image that agrees with `y`."""
        return y

    def project(self, v: Float[Tensor, "*b2"]) -> Float[Tensor, "*b2"]:
        """Keep of `v` only what the measurement leaves open."""
        return v

    def view(self, y: Float[Tensor, "*b2"]) -> Float[Tensor, "*b3"]:
        """The measurement as the network sees it: an image of the size of `x`."""
        return y

    def blank(self, y: Float[Tensor, "*b2"]) -> Float[Tensor, "*b2"]:
        """`y` as it was in training, whatever it shows where nothing was measured."""
        return y

    def observe(self, picture: Float[Tensor, "*b2"]) -> Float[Tensor, "*b3"]:
        """A user's picture as a measurement. Most pictures are what was measured already."""
        return self(picture) if self.is_picture_clean else picture

    def impose(self, x: Float[Tensor, "*b2"], y: Float[Tensor, "*b3"]) -> Float[Tensor, "*b2"]:
        """The image nearest to `x` that agrees with `y`."""
        plain = self.naive(y)
        return plain - self.project(plain) + self.project(x)

    def channels(self, of_x: int) -> int:
        """Channels of the measurement of an image with `of_x` channels; 0: any."""
        return of_x

    def picture_channels(self, of_x: int) -> tuple[int, ...]:
        """How many channels a user's picture may have; files are read with the first number."""
        return (self.channels(of_x),)

    def shows_hidden(self, picture: Float[Tensor, "1 c h w"]) -> bool:
        """Whether a clean picture shows what the measurement hides of it, so that it is a truth."""
        return True

    def with_hole(self, hole: Bool[Tensor, "*space"]) -> "Measurement":
        """The same measurement, hiding other pixels."""
        raise InputError("this model does not fill holes. Leave the hole out")

    def describe(self) -> str:
        """What y is, in words; empty: whatever the task says."""
        return ""

    def same_as(self, other: "Measurement") -> bool:
        """Whether the other one hides the same things."""
        if type(self) is not type(other):
            return False
        mine, theirs = dict(self.named_buffers()), dict(other.named_buffers())
        return (
            self._numbers() == other._numbers()
            and mine.keys() == theirs.keys()
            and all(torch.equal(mine[name].cpu(), theirs[name].cpu()) for name in mine)
        )

    def _numbers(self) -> dict[str, float | int]:
        """The plain numbers that it was made with: a fill, a factor, a noise."""
        kept = vars(self).items()
        return {k: v for k, v in kept if isinstance(v, int | float) and not isinstance(v, bool)}
