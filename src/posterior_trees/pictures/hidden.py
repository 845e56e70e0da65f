r"""What a model hides of the picture that it was given, and whether the picture shows it.

A hole and a lost colour are made by the model itself: its measurement $y = A x$ of a picture $x$ is
another picture, and $x$ shows what the tree is about. Where noise, a lower resolution or another
modality are the task, a user's picture is the measurement, $y = x$: nothing is hidden.

Nor does a picture show what is hidden if it was never there: a grey photograph has no colour to
lose, and one that is of a single value in all of the hole has a hole of its own.
"""

from jaxtyping import Float
from torch import Tensor

from posterior_trees.measure import Colorize, Inpaint, Measurement

FLAT = 0.02
"""How much the values of a hole that is blank differ at most: compression leaves traces."""


def shows_hidden(measurement: Measurement, pixels: Float[Tensor, "1 c h w"]) -> bool:
    """Whether a picture, as the model takes it, shows what the model hides of it."""
    return isinstance(measurement, Colorize | Inpaint) and not lacks_hidden(measurement, pixels)


def lacks_hidden(measurement: Measurement, pixels: Float[Tensor, "1 c h w"]) -> bool:
    """Whether what the model would hide of a picture is not in it: it is no truth."""
    if isinstance(measurement, Colorize):
        return bool((pixels == pixels[:, :1]).all())
    if not isinstance(measurement, Inpaint):
        return False
    inside = pixels[..., measurement.hole.to(pixels.device)]
    return bool((inside.amax(dim=-1) - inside.amin(dim=-1) <= FLAT).all())
