"""Score an evaluation again with torch and safetensors only.

    randens.evaluation.save_worst_inputs("worst.safetensors", result, rec, data)
    python rescore.py RUN/ensemble worst.safetensors

The networks are defined here again (convnet, mlp and linear of randens), so that no line of randens is used.
"""

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


def logits(w: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    x = (x - w["mean"]) / w["std"] if "mean" in w else x
    weights = [w[key] for key in sorted((k for k in w if k.endswith(".weight")), key=lambda k: [len(k), k])]
    biases = [w[key] for key in sorted((k for k in w if k.endswith(".bias")), key=lambda k: [len(k), k])]
    for depth, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = F.relu(x) if depth else x
        image = weight.dim() == 4
        x = F.conv2d(x, weight, bias, 2 if depth else 1, 1) if image else F.linear(x.flatten(1), weight, bias)
    return x


folder, found = Path(sys.argv[1]), load_file(sys.argv[2])
members = [
    load_file(folder / entry["file"])
    for entry in json.loads((folder / "ensemble.json").read_text())["members"]
]
errors = torch.stack([logits(w, found["x_adv"]).argmax(dim=1) != found["y"] for w in members], dim=1)
accuracy = 1 - float((errors.double() @ found["probs"]).mean())
same = torch.equal(errors, found["errors"])
print(json.dumps({"robust_accuracy": accuracy, "inputs": len(errors), "verdicts_agree": same}))
