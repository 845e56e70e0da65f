"""The Triton kernels compile for GPUs that are not here, and fit into a block's shared memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip(
    "triton", reason="Triton comes with CUDA builds of torch, or with the dev extra"
)
KERNELS = {
    "_group_norm", "_channel_sums", "_measure", "_normalize", "_normalize_and_halve", "_to_leaves",
}  # fmt: skip


@pytest.mark.parametrize(
    ("capability", "kilobytes"),
    [("80", 163), ("87", 163), ("90", 227), ("100", 227)],
    ids=["A100", "Orin", "H100", "B200"],
)
def test_every_kernel_compiles_and_fits(capability: str, kilobytes: int, tmp_path: Path) -> None:
    if capability == "100" and triton.__version__.startswith("3.2."):
        pytest.skip("Triton 3.2 does not know this GPU")
    script = Path(__file__).parent / "compile_kernels.py"
    kept = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(script), capability],
        env=kept | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    shared = json.loads(done.stdout.splitlines()[-1])
    assert set(shared) == KERNELS
    assert max(shared.values()) <= 1024 * kilobytes, shared
