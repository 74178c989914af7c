"""Images that do not fit into memory stay in their files while a network is trained on them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
FEW, MANY, SIZE = 10, 180, 512  # 180 images are 142 MB of pixels
_CHILD = """
import resource, sys
import torch
torch.set_num_threads(1)
from randens.data import convert
from randens.training import train
from tests.training.small_runs import small

convert._IN_MEMORY = 1 << 20  # a GiB otherwise
for name, workers in (("few", 0), ("few", 2), ("many", 0)):
    used = []

    def progress(task, done, total):
        with open("/proc/self/statm") as file:
            used.append(int(file.read().split()[1]) * resource.getpagesize())

    recipe = small(
        data={"name": f"{sys.argv[1]}/{name}", "workers": workers}, batch_size=2, epochs=1,
        model={"name": "linear", "width": None, "depth": None, "normalize": False},
        adversary={"name": "n-fgsm"}, validation={"size": 2, "steps": 1},
    )
    train(recipe, f"{sys.argv[1]}/run-{name}-{workers}", progress)
print(max(used) - used[0])
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_a_folder_of_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for folder, count in (("few", FEW), ("many", MANY)):
        for label, name in enumerate(("dark", "light")):
            (tmp_path / folder / name).mkdir(parents=True)
            for number in range(count // 2):
                color = (rng.integers(0, 100, 3) + 120 * label).tolist()
                image = Image.new("RGB", (SIZE, SIZE), tuple(color))
                image.save(tmp_path / folder / name / f"{number}.png")
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _CHILD, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.splitlines()[-1]) < 0.8 * 3 * SIZE**2 * MANY
    one, two = ((tmp_path / f"run-few-{workers}" / "ensemble").iterdir() for workers in (0, 2))
    # Readers in other processes change nothing.
    assert [path.read_bytes() for path in sorted(one)] == [path.read_bytes() for path in sorted(two)]
