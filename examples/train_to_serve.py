"""From training to a served model in about a minute: digits → train → report → export → serve → ask.

Three small networks are trained against an adversary, the probabilities of drawing them are chosen under attack on
validation images, the ensemble is evaluated on test images, a report is written, the ensemble is exported to
ONNX and served on loopback, and a client requests the label of a test image many times: every answer is a
fresh draw.

    python examples/train_to_serve.py                # into a temporary folder
    python examples/train_to_serve.py --output runs  # runs/train-to-serve-1, with report.html and bundle/
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

import randens
from randens.core.runs import Run
from randens.deploy import export
from randens.evaluation import Evaluation
from randens.report import write_report
from randens.training import Recipe, train


def trained(run: Run, recipe: Recipe) -> randens.RandomizedEnsemble:
    """The ensemble, its probabilities chosen on validation images by the witnesses that two attacks find there."""
    rec = train(recipe, run.path / "trained")
    threat = recipe.threat.build()
    validation = randens.data.load("digits", "validation")
    chosen = [randens.attacks.create(name, threat) for name in ("pgd", "saddle")]
    sampling = randens.optimize_sampling(rec, validation, chosen)
    print(f"probabilities    {[round(p, 3) for p in sampling.probs.tolist()]}: {sampling.claim}")
    best = randens.RandomizedEnsemble(
        list(rec.members), sampling.probs, classes=validation.classes, threat=threat
    )
    best.save(run.ensemble)
    run.write("sampling", sampling.to_json())
    return best


def evaluated(run: Run, rec: randens.RandomizedEnsemble) -> Path:
    """Evaluate on test images and write the report."""
    assert rec.threat is not None
    chosen = [randens.attacks.create(name, rec.threat) for name in ("pgd", "arc-r", "saddle")]
    test = randens.data.load("digits", "test").subset(slice(0, 200))
    result = randens.evaluate(rec, test, chosen)
    assert isinstance(result, Evaluation)
    result.save(run.path / "evaluation.json")
    print(f"test accuracy    {result.natural:.3f} natural, {result.robust:.3f} robust, {len(test)} images")
    print(f"each member      {', '.join(f'{1 - risk:.3f}' for risk in result.member_risks)} robust alone")
    return write_report([run.path])


@contextlib.contextmanager
def served(bundle: Path) -> Iterator[str]:
    """The address of `randens serve` on a free port of this machine; stopped on leaving."""
    program = "from randens.cli.main import main; main()"
    command = [sys.executable, "-c", program, "serve", str(bundle), "--port", "0", "--max-draws", "100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split(" at ")[1].split("/ ")[0]
        finally:
            server.terminate()


def ask(address: str, image: torch.Tensor, draws: int) -> list[str]:
    """The names of the classes that `draws` independent draws give for one image."""
    request = urllib.request.Request(
        f"{address}/v1/predict?draws={draws}",
        data=json.dumps({"inputs": [image.tolist()]}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return [prediction["name"] for prediction in json.load(answer)["predictions"]]


def whole(folder: Path, epochs: int) -> None:
    begun = time.perf_counter()
    recipe = Recipe.model_validate(
        {
            "method": "iat",
            "members": 3,
            "epochs": epochs,
            "batch_size": 64,
            "model": {"name": "convnet", "width": 8},
            "data": {"name": "digits"},
            "threat": {"norm": "linf", "eps": 0.2},
            "adversary": {"name": "pgd", "steps": 4},
            "optimizer": {"lr": 0.1},
        }
    )
    splits = {"probs": "validation", "checkpoints": "validation"}
    run = Run.create_next(folder, "train-to-serve", recipe=recipe.to_json(), seed=0, chosen_on=splits)
    rec = trained(run, recipe)
    report = evaluated(run, rec)
    print(f"report           {report}")
    bundle = export(rec, randens.data.load("digits", "validation"), run.path / "bundle")
    print(f"bundle           {run.path / 'bundle'} with checksum {bundle.checksum[:16]}…")

    test = randens.data.load("digits", "test")
    with served(run.path / "bundle") as address:
        shares = (rec.verdicts(test.x) == test.y.unsqueeze(1)).double() @ rec.probs
        agreed, disputed = (
            (shares == 1).nonzero().flatten(),
            ((shares > 0) & (shares < 1)).nonzero().flatten(),
        )
        for what, indices in (("agreed on", agreed), ("disputed", disputed)):
            if not len(indices):
                print(f"{what:16} no test image")
                continue
            index = int(indices[0])
            names = Counter(ask(address, test.x[index], draws=100))
            print(
                f"{what:16} image {index}, a {test.classes[int(test.y[index])]}: 100 draws said {dict(names)}"
            )
    print(f"done             in {time.perf_counter() - begun:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output", type=Path, help="folder that the run is made in; without it a temporary one"
    )
    parser.add_argument("--epochs", type=int, default=10, help="of training, for each of the three networks")
    options = parser.parse_args()
    # Networks this small gain nothing from several threads.
    torch.set_num_threads(1)
    if options.output is not None:
        whole(options.output, options.epochs)
        return
    with tempfile.TemporaryDirectory() as folder:
        whole(Path(folder), options.epochs)


if __name__ == "__main__":
    main()
