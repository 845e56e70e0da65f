"""The paper's tasks: which images, and what is known of them.

A recipe that names a task starts from its entry here; whatever the recipe says itself wins. Holes
are rows and columns, first and last hidden one, of images of size `of`, and scale with `data.size`.

| task | x | y |
|---|---|---|
| `digits_inpaint` | MNIST digit | rows 0–19 of 28 hidden |
| `faces_colorize`, `cats_colorize` | RGB face | mean of its channels |
| `faces_eyes` | RGB face | rows 80–149, columns 40–214 of 256 hidden |
| `faces_mouth` | RGB face | rows 165–249, columns 55–199 of 256 hidden |
| `shoes_from_edges` | RGB photo of a shoe | its edge map (`data/edges.py`) |
| `cells_actin_to_dna` | nuclear stain, windows of fields | actin stain |

The paper's splits run along sorted names; cells, whose wells follow their plates, are drawn by
hash. The leaf balancer is on for the holes in faces, as in the paper: a few leaves would take all
images.
"""

from typing import Any

FACES = {
    "name": "faces256",
    "size": (256, 256),
    "split_order": "sorted",
    "augment": ("flip",),
}
EYES = {"kind": "inpaint", "rows": (80, 149), "columns": (40, 214), "of": (256, 256)}
MOUTH = {"kind": "inpaint", "rows": (165, 249), "columns": (55, 199), "of": (256, 256)}
CELLS = {
    "name": "cells_actin_dna",
    "kind": "pairs",
    "inputs": "actin_golgi",
    "targets": "dna",
    "channels": 1,
    "shift": (0.1, -0.7),  # the cameras' offset, results/cells_actin_to_dna
    "split": "well",
    "patch": 128,
    "augment": ("symmetries",),
}

TASKS: dict[str, dict[str, dict[str, Any]]] = {
    "digits_inpaint": {
        "data": {
            "name": "mnist",
            "kind": "idx",
            "channels": 1,
            "split": "files",
            "split_order": "sorted",
        },
        "measurement": {"kind": "inpaint", "rows": (0, 19), "columns": (0, 27), "of": (28, 28)},
        "network": {"padding": "zeros"},
    },
    "faces_colorize": {"data": FACES, "measurement": {"kind": "colorize"}},
    "faces_eyes": {"data": FACES, "measurement": EYES, "balancer": {"is_on": True}},
    "faces_mouth": {"data": FACES, "measurement": MOUTH, "balancer": {"is_on": True}},
    "cats_colorize": {"data": {**FACES, "name": "cats256"}, "measurement": {"kind": "colorize"}},
    "shoes_from_edges": {
        "data": {
            "name": "shoes128",
            "kind": "edges",
            "split_order": "sorted",
            "augment": ("flip",),
        },
        "measurement": {"kind": "paired"},
    },
    "cells_actin_to_dna": {"data": CELLS, "measurement": {"kind": "paired"}},
}
"""Sections of a recipe, by the name of the task."""
