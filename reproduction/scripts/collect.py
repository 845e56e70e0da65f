"""Put what a command wrote where results are kept: `collect.py FROM NAME [PATTERN…]`.

FROM/<PATTERN> [*.json]   → results/NAME/numbers.json: one file's content, or several by name
other texts of FROM       → results/logs.tar.xz under NAME/ (logs, tries, values per image)

Pictures and README.md are placed by hand. The archive has neither times nor owners: the same files
make the same bytes.
"""

import io
import json
import sys
import tarfile
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "results"
ARCHIVE = RESULTS / "logs.tar.xz"
TEXTS = {".json", ".jsonl", ".md", ".tex", ".txt"}


def read_archive(archive: Path = ARCHIVE) -> dict[str, bytes]:
    """All files of the archive by their names."""
    if not archive.is_file():
        return {}
    with tarfile.open(archive) as tar:
        found = ((entry.name, tar.extractfile(entry)) for entry in tar)
        return {name: file.read() for name, file in found if file}


def write_archive(files: dict[str, bytes], archive: Path = ARCHIVE) -> None:
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size = len(files[name])
            tar.addfile(entry, io.BytesIO(files[name]))


def collect(source: Path, name: str, patterns: list[str], results: Path = RESULTS) -> None:
    chosen = sorted({file for pattern in patterns for file in source.glob(pattern)})
    names = [file.relative_to(source).with_suffix("").as_posix() for file in chosen]
    texts = [file.read_text(encoding="utf-8") for file in chosen]
    numbers = dict(zip(names, map(json.loads, texts), strict=True))
    content = next(iter(numbers.values())) if len(numbers) == 1 else numbers
    folder = results / name
    folder.mkdir(parents=True, exist_ok=True)
    if numbers:
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        (folder / "numbers.json").write_text(text, encoding="utf-8")
    others = [file for file in source.rglob("*") if file.suffix in TEXTS and file not in chosen]
    found = {f"{name}/{f.relative_to(source).as_posix()}": f.read_bytes() for f in others}
    archive = results / ARCHIVE.name
    write_archive(read_archive(archive) | found, archive)
    print(f"{folder}: {len(numbers)} files in numbers.json, {len(found)} in {archive.name}")


if __name__ == "__main__":
    collect(Path(sys.argv[1]), sys.argv[2], sys.argv[3:] or ["*.json"])
