"""Images and where they come from: the user's data folder → splits → batches → augmentation.

`load_split` is the way in: it reads IDX files, image folders, tar files and paired channels, splits
them by a rule and keeps them as 8- or 16-bit integers; `batch` gives float32 in [0, 1].
"""

from posterior_trees.data.augment import augment
from posterior_trees.data.download import download
from posterior_trees.data.edges import draw_edges, store_edges
from posterior_trees.data.idx import read_idx
from posterior_trees.data.imageset import ImageSet, evenly_spaced, measure_each, measured_batch
from posterior_trees.data.load import (
    describe_other_images,
    find_folder,
    list_names,
    load_evaluation,
    load_images,
    load_split,
)
from posterior_trees.data.pictures import own_names
from posterior_trees.data.report import report, status
from posterior_trees.data.splits import files_of, find_groups, fingerprint, image_of
from posterior_trees.data.stream import StreamedImageSet, grid_patches
