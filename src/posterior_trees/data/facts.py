"""What a model remembers of its training images, and what may be wrong with them."""

from typing import Any

import torch

from posterior_trees.data.imageset import ImageSet, evenly_spaced, measured_batch
from posterior_trees.data.pictures import own_names
from posterior_trees.data.splits import files_of, fingerprint
from posterior_trees.imaging.regions import SIDE, median_region
from posterior_trees.measure import Measurement

FEW = 10
"""Images of a set that have quantiles worth knowing."""
PIXELS, IMAGES = 10_000_000, (3 * FEW, 200)
"""How much of a set's regions is looked at: so many pixels, in between so many images."""
DARK, LOOKED_AT = 0.1, 64
"""A set is dark whose brightest pixel, in so many of its images, is below this share of white."""


def describe_training(images: ImageSet, measurement: Measurement) -> dict[str, Any]:
    """What a user's picture is later compared with, for a model's `about`."""
    facts: dict[str, Any] = {"input_brightness": brightness_range(images, measurement)}
    facts |= name_images(images)
    facts |= {"pixel_size": images.pixel_size} if images.pixel_size else {}
    regions = region_quantiles(images)
    return facts | {"region_pixels": regions} if regions else facts


def brightness_range(
    images: ImageSet, measurement: Measurement, limit: int = 10_000
) -> list[float]:
    """The 0.1 % and 99.9 % quantiles of the mean brightness of the measurements of a set, judged by
    `limit` evenly spaced images; a model keeps them in `about["input_brightness"]`."""
    means = []
    for indices in torch.tensor(evenly_spaced(len(images), limit)).split(256):
        device = next((buffer.device for buffer in measurement.buffers()), images.device)
        _, y = measured_batch(images, indices, measurement, 0, device)
        means.append(y.flatten(1).mean(dim=1).cpu().double())
    return torch.cat(means).quantile(torch.tensor([0.001, 0.999]).double()).tolist()


def region_quantiles(images: ImageSet) -> list[float] | None:
    """The 5, 50 and 95 % quantiles of the medians of a set's clean images, which a model keeps in
    `about["region_pixels"]`; None unless they are grey, one of a pair each, and at least ten have
    enough regions."""
    channels, height, width = images.shape
    least, most = IMAGES
    count = min(max(PIXELS // (min(height, SIDE) * min(width, SIDE)), least), most)
    medians = []
    for index in evenly_spaced(len(images), count if channels == 1 else 0):
        x, y = images.batch([index])
        if y is None:
            return None
        medians.append(median_region(x[0, 0]))
    found = torch.tensor([median for median in medians if median is not None]).double()
    if len(found) < FEW:
        return None
    return found.quantile(torch.tensor([0.05, 0.5, 0.95]).double()).tolist()


def name_images(images: ImageSet) -> dict[str, Any]:
    """What a model keeps of its training files: how many, extras included, and a fingerprint of its
    own set's (`data.describe_other_images`). Images in memory have numbers, and no fingerprint."""
    files = files_of(images.names)
    facts: dict[str, Any] = {"train_images": len(files)}
    if images.names[:1] == ["0"]:
        return facts
    return {**facts, "train_names": fingerprint(own_names(files))}


def oddities(images: ImageSet) -> list[str]:
    """What is odd about a training set: hardly any light, no colour, nothing to predict."""
    brightest: dict[str, float] = {}
    is_grey, is_same = images.shape[0] == 3, True
    for number in evenly_spaced(len(images), LOOKED_AT):
        x, y = images.batch([number])
        for name, pixels in (("x", x), ("y", y)):
            if pixels is not None:
                brightest[name] = max(brightest.get(name, 0.0), pixels.max().item())
        is_grey = is_grey and bool((x == x[:, :1]).all())
        is_same = is_same and y is not None and y.shape == x.shape and bool((x == y).all())
    found = []
    if dark := [f"{value:.1%} ({name})" for name, value in brightest.items() if value < DARK]:
        found.append(
            f"the brightest training pixels are {' and '.join(dark)} of white. A camera's 12 bits "
            "in 16-bit files? Stretch the images first (docs/data.md)"
        )
    if is_grey:
        found.append(
            "the training images have no colour: their three channels are equal. For grey images "
            "set data.channels = 1"
        )
    if is_same:
        found.append("inputs and targets are the same images: there is nothing to predict")
    return found
