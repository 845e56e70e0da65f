"""Write the certificates of the shipped models into src/posterior_trees/assets.

    python reproduction/scripts/certify_shipped.py DATA [digits cells]

Digits: 5,000 evenly spaced ones of MNIST's test set, without the 48 that the demo shows. Cells:
whole fields of the test wells, with scales fitted on 60 evenly spaced training fields, so that all
eleven wells give scores (the validation wells chose the epoch, and eight would allow no 90 %).
"""

import sys
from pathlib import Path
from typing import Any

from posterior_trees import load
from posterior_trees.data import evenly_spaced, load_split
from posterior_trees.guarantee.certify import calibrate
from posterior_trees.models.checkpoint import keep_guarantee, load_recipe
from posterior_trees.progress import track

SHOWN = set(evenly_spaced(10_000, 48))
NOTES = {
    "digits": "MNIST test digits, none of them trained on and none shown by the demo; options of "
    "the training were also looked at on test digits",
    "cells": "fields of the test wells E14 to E24, which chose nothing; scales fitted on fields "
    "of the training wells",
}


def certify(name: str, data: str) -> None:
    spec = load_recipe(name).data
    predictor = load(name, "cpu")
    predictor.guarantee = None
    images = load_split(spec, data, "test")
    options: dict[str, Any] = {"watch": track(f"calibrating {name}"), "batch_size": 50}
    if name == "digits":
        unseen = [i for i in range(len(images)) if i not in SHOWN]
        images = images.subset([unseen[i] for i in evenly_spaced(len(unseen), 5000)])
        found = calibrate(predictor, images, measures=["ink", "share=0.5"], box=(6, 6), **options)
    else:
        train = load_split(spec, data, "train")
        options |= {"fit": train.subset(evenly_spaced(len(train), 60)), "batch_size": 4}
        measures = ["nuclei", "ink"]
        found = calibrate(predictor, images, "well", measures, (24, 24), **options)
    found.facts |= {"split": "test", "note": NOTES[name]}
    kept = sum(tensor.nbytes for tensor in found.tensors().values())
    print(keep_guarantee(name, found), f"{found.n} images, {found.groups} groups, {kept} bytes")


if __name__ == "__main__":
    for chosen in sys.argv[2:] or ("digits", "cells"):
        certify(chosen, str(Path(sys.argv[1])))
