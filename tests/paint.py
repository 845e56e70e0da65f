"""Small pictures in every format that a microscope's user has, painted with tifffile and zarr."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
import zarr
from PIL import Image
from standins import _cells

NAMES = ("Hoechst", "Actin")


def paint_field(height: int = 80, width: int = 112, seed: int = 0) -> np.ndarray:
    """A field of cells `(2, h, w)`, 16 bits: nuclei, then actin."""
    rows, columns = -(-height // 40), -(-width // 56)
    parts = [_cells(100 * seed + i) for i in range(rows * columns)]
    channels = []
    for place in (1, 0):
        grid = [[np.asarray(parts[i * columns + j][place], dtype=np.uint16) for j in range(columns)]
                for i in range(rows)]  # fmt: skip
        channels.append(np.block(grid)[:height, :width] * np.uint16(200) + np.uint16(37))
    return np.stack(channels)


def write_ome_tiff(
    file: Path, field: np.ndarray, pixel: float | None = 0.65, names: Sequence[str] = NAMES,
    axes: str = "CYX", **options: Any,
) -> Path:  # fmt: skip
    """OME-TIFF; with `subifds=1` a pyramid of two levels."""
    facts: dict[str, Any] = {"axes": axes}
    if "C" in axes:
        facts["Channel"] = {"Name": list(names)}
    if pixel:
        for side in "XY":
            facts |= {f"PhysicalSize{side}": pixel, f"PhysicalSize{side}Unit": "µm"}
    with tifffile.TiffWriter(file) as tiff:
        tiff.write(field, metadata=facts, photometric="minisblack", **options)
        if options.pop("subifds", 0):
            tiff.write(field[..., ::2, ::2], subfiletype=1, photometric="minisblack", **options)
    return file


def write_imagej(file: Path, field: np.ndarray, axes: str = "CYX", pixel: float = 0.65) -> Path:
    facts = {"axes": axes, "unit": "um", "Labels": list(NAMES)}
    tifffile.imwrite(file, field, imagej=True, metadata=facts, resolution=(1 / pixel, 1 / pixel))
    return file


def write_ome_zarr(
    folder: Path, field: np.ndarray, ngff: str = "0.5", pixel: float | None = 0.65,
    names: Sequence[str] = NAMES, axes: str = "cyx", chunk: int = 64,
) -> Path:  # fmt: skip
    """An image of two levels."""
    kinds = {"c": "channel", "t": "time"}
    described = [{"name": a, "type": kinds.get(a, "space")} for a in axes]
    for axis in described:
        if pixel and axis["type"] == "space":
            axis["unit"] = "micrometer"
    levels = (field, field[..., ::2, ::2])
    datasets = [
        {"path": str(i), "coordinateTransformations": [{"type": "scale", "scale": [
            (pixel or 1.0) * 2**i if a in "yx" else 1.0 for a in axes]}]}
        for i in range(len(levels))
    ]  # fmt: skip
    facts: dict[str, Any] = {"multiscales": [{"axes": described, "datasets": datasets}]}
    facts["omero"] = {"channels": [{"label": name, "color": "FFFFFF", "window": {
        "min": 0, "max": 65535, "start": 0, "end": 65535}} for name in names]}  # fmt: skip
    if ngff == "0.5":
        attributes = {"ome": facts | {"version": "0.5"}}
    else:
        facts["multiscales"][0]["version"] = ngff
        attributes = facts
    zarr_format = 3 if ngff == "0.5" else 2
    group = zarr.open_group(folder, mode="w", zarr_format=zarr_format, attributes=attributes)
    for i, level in enumerate(levels):
        chunks = (1,) * (level.ndim - 2) + (chunk, chunk)
        array = group.create_array(str(i), shape=level.shape, chunks=chunks, dtype=level.dtype,
                                   chunk_key_encoding={"name": "v2", "separator": "/"}
                                   if zarr_format == 2 else None)  # fmt: skip
        array[...] = level
    return folder


def write_plate(folder: Path, wells: Sequence[str] = ("A/1", "B/2"), sites: int = 2,
                ngff: str = "0.5", size: tuple[int, int] = (80, 112)) -> Path:  # fmt: skip
    """A plate of fields; the pixels of well i and site j are `paint_field(seed=10 * i + j)`."""
    zarr_format = 3 if ngff == "0.5" else 2

    def attributes(facts: dict[str, Any]) -> dict[str, Any]:
        return {"ome": {"version": "0.5", **facts}} if zarr_format == 3 else facts

    rows, columns = (sorted({w.split("/")[i] for w in wells}) for i in (0, 1))
    listed = [{"path": w, "rowIndex": rows.index(w.split("/")[0]),
               "columnIndex": columns.index(w.split("/")[1])} for w in wells]  # fmt: skip
    plate = {"name": "painted", "rows": [{"name": r} for r in rows], "field_count": sites,
             "columns": [{"name": c} for c in columns], "wells": listed}  # fmt: skip
    zarr.open_group(folder, mode="w", zarr_format=zarr_format,
                    attributes=attributes({"plate": plate}))  # fmt: skip
    for i, well in enumerate(wells):
        images = [{"path": str(j), "acquisition": 0} for j in range(sites)]
        zarr.open_group(folder / well, mode="a", zarr_format=zarr_format,
                        attributes=attributes({"well": {"images": images}}))  # fmt: skip
        for j in range(sites):
            write_ome_zarr(folder / well / str(j), paint_field(*size, seed=10 * i + j), ngff)
    return folder


def write_all(folder: Path, field: np.ndarray) -> dict[str, Path]:
    """The same actin in every format, with the nuclei before it where there are channels."""
    Image.fromarray(field[1]).save(folder / "plain.png")
    tifffile.imwrite(folder / "plain.tif", field[1])
    tifffile.imwrite(folder / "tiles.tif", field[1], tile=(32, 32), compression="lzw")
    tifffile.imwrite(folder / "big.tif", field[1], bigtiff=True, byteorder=">", rowsperstrip=7)
    tiled = {"tile": (32, 48), "compression": "zlib", "subifds": 1}
    return {
        "png": folder / "plain.png",
        "tiff": folder / "plain.tif",
        "tiles": folder / "tiles.tif",
        "bigtiff": folder / "big.tif",
        "imagej": write_imagej(folder / "imagej.tif", field),
        "ome": write_ome_tiff(folder / "field.ome.tif", field),
        "pyramid": write_ome_tiff(folder / "pyramid.ome.tif", field, **tiled),
        "zarr 0.4": write_ome_zarr(folder / "four.ome.zarr", field, "0.4"),
        "zarr 0.5": write_ome_zarr(folder / "five.ome.zarr", field, "0.5"),
    }
