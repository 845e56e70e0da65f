"""What a comparison gives to every method, as files for a sampler of somebody's own.

DIR/inputs.json        `{"schema": 1, "task", "split", "seed", "size": [c, h, w], "measurement",
                       "images": [{"number", "name", "y": "y/00004.npy", "x": "x/00004.npy"}…]}`
DIR/y/00004.npy        the measurement of image 4, float32 `(h, w, c)`, in [0, 1] but for noise:
                       sample from this
DIR/x/00004.npy        the truth, which a sampler must not see; for looking and for scores
DIR/hole.npy           the hidden pixels (True), bool `(h, w)`, where the measurement hides some

Samples of it come back as `FOLDER/00004.npy` or `FOLDER/00004/0000.png`, … (`baselines/folder.py`).
"""

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from posterior_trees.store import whole, write_json
from posterior_trees_paper.compare.methods import Inputs

SCHEMA = 1


def save_inputs(folder: Path, inputs: Inputs, facts: dict[str, Any]) -> list[Path]:
    """Write the files above; returns `inputs.json` and the folders beside it."""
    for stale in (*folder.glob("[xy]/*.npy"), *folder.glob("hole.npy")):  # of another comparison
        stale.unlink()
    images = []
    for place, (number, name) in enumerate(zip(inputs.indices.tolist(), inputs.names, strict=True)):
        files = {}
        for kind, batch in (("y", inputs.y), ("x", inputs.x)):
            files[kind] = f"{kind}/{number:05d}.npy"
            _save(folder / files[kind], batch[place])
        images.append({"number": number, "name": name, **files})
    written = [folder / "inputs.json", folder / "y", folder / "x"]
    if inputs.hole is not None:
        written.append(folder / "hole.npy")
        with whole(written[-1]) as part:
            np.save(part, inputs.hole.cpu().numpy(), allow_pickle=False)
    about = {"size": list(inputs.x.shape[1:]), "measurement": type(inputs.measurement).__name__}
    write_json(written[0], {"schema": SCHEMA, **facts, **about, "images": images})
    return written


def _save(file: Path, image: Tensor) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole(file) as part:
        np.save(part, image.permute(1, 2, 0).cpu().contiguous().numpy(), allow_pickle=False)
