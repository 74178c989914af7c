"""`randens doctor`: check the installation."""

from __future__ import annotations

import typer

from randens.cli.choices import Json, show


def doctor(as_json: Json = False) -> None:
    """Check versions, device and a case with a known answer; exit code 1 if something is wrong.

    It takes seconds and changes nothing. Include its output in a bug report.

    Example: randens doctor
    """
    import torch

    from randens.core.runs import versions

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU (no CUDA device)"
    try:
        fault = _self_check()
    # Whatever is wrong with the installation is what the check is for.
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    found = {
        "versions": ", ".join(f"{name} {number}" for name, number in versions().items()),
        "device": f"{device}, {torch.get_num_threads()} threads",
        "self-check": fault or "attacks and sampling find a known optimum",
    }
    checks = [
        {"name": name, "ok": name != "self-check" or not fault, "detail": detail}
        for name, detail in found.items()
    ]
    lines = [f"{'ok  ' if each['ok'] else 'BAD '} {each['name']:<10} {each['detail']}" for each in checks]
    end = "Something is wrong: see BAD above." if fault else "All checks passed."
    show({"ok": not fault, "checks": checks}, as_json, [*lines, end])
    if fault:
        raise typer.Exit(1)


def _self_check() -> str:
    """Two linear members on a line, each fooled in its own direction and never both; returns what is wrong."""
    import torch

    from randens import attacks, models
    from randens.ensemble import RandomizedEnsemble
    from randens.risk import RiskProfile, optimal_sampling
    from randens.threat import Threat

    members = [models.create("linear", classes=2, input_shape=(1,), seed=0) for _ in range(2)]
    with torch.no_grad():
        for member, sign in zip(members, (1.0, -1.0), strict=True):
            weight, bias = list(member.parameters())
            weight.copy_(torch.tensor([[0.0], [sign]]))
            # Right at 0.5, wrong from 0.6 on (first member) or up to 0.4 (second member).
            bias.copy_(torch.tensor([0.0, -0.6 if sign > 0 else 0.4]))
    x, y, threat = torch.full((4, 1), 0.5), torch.zeros(4, dtype=torch.int64), Threat("linf", 0.2)
    for name in ("pgd", "arc-r", "saddle", "exact"):
        found = attacks.create(name, threat)(RandomizedEnsemble(members), x, y)
        if found.risk.tolist() != [0.5] * 4 or not bool(threat.contains(found.x_adv, x).all()):
            return f"{name} finds the risks {found.risk.tolist()}, where 0.5 is the exact value"
    # Where members are never fooled together, the optimum is (½, ½) at half the risk.
    best = optimal_sampling(RiskProfile.from_configurations([[(1, 0), (0, 1)], [(0, 0)]], [0.6, 0.4]))
    if best.certificate is None or abs(best.risk - 0.3) > 1e-9 or abs(float(best.probs[0]) - 0.5) > 1e-9:
        return f"the known optimum 0.3 at (½, ½) came out as {best.risk} at {best.probs.tolist()}"
    return ""
