"""Clean images of a set with their measurements."""

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.data.imageset import ImageSet
from posterior_trees.measure import Measurement


def measured_batch(
    images: ImageSet, indices: Tensor, measurement: Measurement, seed: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Clean images of a set and their measurements: as recorded, or made by `measure_each`."""
    x, y = images.batch(indices)
    x = x.to(device)
    y = measure_each(measurement, x, indices, seed) if y is None else y
    return x, y.to(device)


def measure_each(
    measurement: Measurement, x: Float[Tensor, "b *shape"], indices: Tensor, seed: int
) -> Tensor:
    """Measure images so that the noise of image `i` depends on `(seed, i)` only."""
    if not measurement.is_random:
        return measurement(x)
    generator = torch.Generator()
    measured = []
    for image, index in zip(x, indices.tolist(), strict=True):
        generator.manual_seed((seed * 1_000_003 + index) % 2**63)
        measured.append(measurement(image[None], generator))
    return torch.cat(measured)
