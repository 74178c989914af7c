"""`evaluate` takes classifiers, data, attacks and devices as people have them, and says what it made of them."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from tests.attacks.cases import convnet, digits
from tests.evaluation.evaluated import evaluate
from tests.evaluation.trained import Probabilities
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import randens
from randens import DeterministicEnsemble, RandensWarning, RandomizedEnsemble, Threat, attacks
from randens.core.errors import FileError, InputError, ModelError, RandensError
from randens.core.runs import Run
from randens.evaluation import Evaluation, as_rec, load_model
from randens.evaluation.tables import Result

EPS = 0.1
X, Y = (t[:24] for t in digits("test"))


def nets() -> list[nn.Module]:
    return [convnet(0).eval(), convnet(1).eval()]


@functools.cache
def expected() -> Evaluation:
    return evaluate(RandomizedEnsemble(nets()), (X, Y), "pgd", eps=EPS)


DATA: dict[str, Callable[[], Any]] = {
    "arrays": lambda: (X.numpy().astype(np.float64), Y.tolist()),
    "channels last": lambda: (np.ascontiguousarray(X.numpy().transpose(0, 2, 3, 1)), Y.numpy()),
    "loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=7),
}


@pytest.mark.parametrize("kind", DATA)
def test_any_kind_of_data_gives_the_same(kind: str) -> None:
    result = evaluate(nets(), DATA[kind](), "pgd", eps=EPS)
    assert (result.errors == expected().errors).all()
    assert (kind == "channels last") == any("channels last" in note for note in result.notes)


def test_one_module_a_deterministic_ensemble_names_and_folders(tmp_path: Path) -> None:
    one = evaluate(nets()[0], "digits", "fgsm", eps=EPS, limit=10)
    assert (one.members, one.n, one.about.data, one.about.split) == (1, 10, "digits", "test")
    whole = evaluate(DeterministicEnsemble(nets()), "digits", "fgsm", eps=EPS, limit=10)
    assert whole.members == 1
    net = randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=0)
    run = Run.create(tmp_path / "run", recipe={"data": {"name": "digits"}})
    RandomizedEnsemble([net], threat=Threat("linf", 0.05)).save(run.ensemble)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RandensWarning)
        found = evaluate(tmp_path / "run", attack="fgsm", limit=10)
        again = evaluate(str(tmp_path / "run" / "ensemble"), "digits", "fgsm", limit=10)
    assert found.threat == Threat("linf", 0.05)
    assert float(found.robust) == float(again.robust)


def test_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    torch.jit.save(torch.jit.trace(convnet(0).eval(), X[:2]), path)  # type: ignore[no-untyped-call]
    result = evaluate(f"torchscript:{path}", (X, Y), "pgd", eps=EPS)
    with pytest.raises(InputError, match="this file is code; to run it, name it as torchscript:"):
        evaluate(path, (X, Y), "pgd", eps=EPS)
    assert float(result.natural) == float(evaluate(nets()[0], (X, Y), "fgsm", eps=EPS).natural)
    with pytest.raises(InputError, match="must be package"):
        load_model("a:b:c")
    (tmp_path / "bare.safetensors").write_bytes(b"x")
    with pytest.raises(InputError, match="give a folder of"):
        evaluate(tmp_path / "bare.safetensors", (X, Y))
    with pytest.raises(InputError, match="no file, folder or name of the zoo"):
        evaluate("nothing-like-it", (X, Y))
    with pytest.raises(FileError, match="no run folder"):
        evaluate(tmp_path, (X, Y))


def test_preprocessing_stays_inside_so_that_radii_are_in_pixels() -> None:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    outer = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    with torch.no_grad():  # the same function, written for normalized inputs
        there, here = cast(nn.Linear, outer[1]), cast(nn.Linear, inner[1])
        there.weight.copy_(here.weight / 0.5)
        there.bias.copy_(here.bias - (here.weight / 0.5 * 0.3).sum(dim=1))
    y = outer(X).argmax(dim=1)
    plain = evaluate(outer, (X, y), "pgd", eps=0.01)
    for given in ((0.3, 0.5), {"mean": [0.3], "std": [0.5]}):
        result = evaluate(inner, (X, y), "pgd", eps=0.01, preprocessing=given)
        assert (result.errors == plain.errors).all()
        assert result.about.preprocessing == "(x − [0.3]) / [0.5]"
    each = evaluate([inner, outer], (X, y), "pgd", eps=0.01, preprocessing=[(0.3, 0.5), None])
    assert (each.errors[:, 0] == each.errors[:, 1]).all()
    assert each.about.preprocessing == "member 0: (x − [0.3]) / [0.5]; member 1: unchanged"
    with pytest.raises(InputError, match="preprocessing is a list of 3"):
        evaluate([inner, outer], (X, y), "pgd", preprocessing=[None] * 3)
    wrong: tuple[tuple[Any, str], ...] = (("auto", "carries timm"), (3, "give"), ((0.3, 0.0), "positive"))
    for bad, said in wrong:
        with pytest.raises(InputError, match=f"preprocessing is .*{said}"):
            evaluate(inner, (X, y), "pgd", eps=0.01, preprocessing=bad)


def test_attacks_are_attacks_names_lists_or_the_portfolio() -> None:
    model = nets()[0]
    assert evaluate(model, (X[:4], Y[:4]), eps=0.01).about.attacks[0]["preset"] == "standard"
    preset = evaluate(model, (X[:4], Y[:4]), "fast", eps=0.01)
    assert preset.about.attacks[0]["preset"] == "fast"
    two = evaluate(model, (X[:4], Y[:4]), ["fgsm", attacks.PGD(Threat("linf", 0.02))])
    assert [a["name"] for a in two.about.attacks] == ["fgsm", "pgd"]
    assert two.threat.eps == 0.02
    with pytest.raises(InputError, match=r"eps is 0\.1, but the attack has 0\.02; say it once"):
        evaluate(model, (X, Y), attacks.PGD(Threat("linf", 0.02)), eps=0.1)
    with pytest.raises(InputError, match="unknown attack 'pdg'; did you mean pgd"):
        evaluate(model, (X, Y), "pdg")
    with pytest.raises(InputError, match=r"attack is \[\]"):
        evaluate(model, (X, Y), [])
    for wrong in (3, [3]):
        with pytest.raises(InputError, match="attack is"):
            evaluate(model, (X, Y), wrong)
    with pytest.raises(InputError, match="norm is 'l2'; give its radius too"):
        evaluate(model, (X, Y), "pgd", norm="l2")


def test_what_looks_wrong_is_said() -> None:
    model = nets()[0]
    with pytest.raises(InputError, match=r"x ranges over \[0, 255\].*look like bytes, so divide them by 255"):
        evaluate(model, (X * 255, Y), "pgd")
    with pytest.raises(
        InputError, match=r"look normalized already, so give images in \[0, 1\] and preprocessing"
    ):
        evaluate(model, ((X - 0.5) / 0.25, Y), "pgd")
    keep = Y < 9
    with pytest.warns(RandensWarning, match="labels look shifted by one"):
        evaluate(model, (X[keep], Y[keep] + 1), "fgsm", eps=0.01)
    torch.manual_seed(0)
    with pytest.warns(RandensWarning, match="^the model is right no more often than by chance"):
        evaluate(model, (X, (Y + 5) % 10), "fgsm", eps=0.01)
    training = copy.deepcopy(model).train()
    with pytest.warns(RandensWarning, match="^the model is in training mode"):
        result = evaluate(training, (X, Y), "fgsm", eps=0.01)
    assert training.training
    assert any("training mode" in note for note in result.notes)
    assert any("training mode" in note for note in Evaluation.from_json(result.to_json()).notes)
    with pytest.warns(RandensWarning, match="^the model is returning probabilities") as warned:
        evaluate(Probabilities(model).eval(), (X, Y), "fgsm", eps=0.01)
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", RandensWarning)
        evaluate(model, (X, Y), "fgsm", eps=0.01)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ((X, Y + 20), r"labels from .*; the members have 10 classes|labels must be in"),
        ((X[:, :, :4], Y), "which member 0 does not take"),
        ((X * torch.nan, Y), "x holds NaN"),
        (None, "data is None"),
        ("nowhere.npz", "nowhere.npz"),
    ],
)
def test_bad_data_is_one_sentence(data: Any, said: str) -> None:
    with pytest.raises(RandensError, match=said) as error:
        evaluate(nets()[0], data, "fgsm", eps=EPS)
    assert "\n" not in str(error.value)


def test_inputs_are_read_in_the_precision_of_the_weights() -> None:
    model = nets()[0]
    single = evaluate(model, (X, Y), "fgsm", eps=EPS)
    from_double = evaluate(model, (X.double(), Y), "fgsm", eps=EPS)
    assert float(from_double.robust) == float(single.robust)
    assert from_double.notes == ("x is float64; it was read as float32, as the members' weights are",)
    double = copy.deepcopy(model).double()
    for data in ((X, Y), (X.double(), Y), randens.data.load("digits", "test").subset(range(8))):
        assert evaluate(double, data, "fgsm", eps=EPS).x_adv.dtype == np.float64
    rec = RandomizedEnsemble([model])
    assert torch.equal(rec.errors(X.double(), Y), rec.errors(X, Y))
    for members, said in (
        ([model, double], "float32 and float64"),
        ([copy.deepcopy(model).half()], "float16"),
    ):
        with pytest.raises(InputError, match=f"the members' weights are {said}"):
            evaluate(members, (X, Y), "fgsm", eps=EPS)


class Noisy(nn.Module):
    """Noise from a generator of its own, on inputs in whatever range they come; its logits are inside a tuple."""

    def __init__(self, net: nn.Module, scale: float) -> None:
        super().__init__()
        self.net, self.scale = net, scale

    def forward(self, x: torch.Tensor, generator: torch.Generator | None = None) -> tuple[torch.Tensor, str]:
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        return self.net(x + self.scale * noise), "features"


def test_random_models_take_preprocessing() -> None:
    """Noise in normalized units is wider in pixels."""
    net = nets()[0]
    wants = randens.RandomizedModel(Noisy(net, 0.1), draws=2)
    undo = nn.Conv2d(1, 1, 1)
    nn.init.constant_(undo.weight, 0.25)
    nn.init.constant_(cast(Tensor, undo.bias), 0.5)
    shifted = nn.Sequential(undo, net)
    for model in (
        randens.RandomizedModel(Noisy(shifted, 0.4), draws=2),
        randens.RandomizedModel(lambda _: Noisy(shifted, 0.4), draws=2),
    ):
        drawn = model.normalized((0.5, 0.25)).freeze(3)(X[:4])
        torch.testing.assert_close(drawn, wants.freeze(3)(X[:4]), rtol=1e-4, atol=1e-4)
    found = randens.evaluate(wants, (X[:8], Y[:8]), "fgsm", eps=EPS, preprocessing=(0.0, 1.0))
    assert 0 <= float(found.robust) <= float(found.natural) <= 1
    assert found.about.preprocessing == "(x − [0.0]) / [1.0]"
    assert as_rec(RandomizedEnsemble([wants, net]), preprocessing=(0.5, 0.25)).stochastic
    with pytest.raises(InputError, match="preprocessing is 'auto'"):
        evaluate(wants, (X, Y), "eot", eps=EPS, preprocessing="auto")


def test_curves_fall_and_agree_with_evaluations(tmp_path: Path) -> None:
    found = randens.curve(nets(), (X, Y), "pgd", eps="0:0.2:5")
    assert [round(p.eps, 6) for p in found.points] == [0, 0.05, 0.1, 0.15, 0.2]
    for values in found.lines.values():
        assert [float(v) for v in values] == sorted(map(float, values), reverse=True)
        assert values[-1] < values[0]
    alone = expected()
    assert float(found.points[0].ensemble) == float(alone.natural)
    assert float(found.points[2].ensemble) <= float(alone.robust) + 1e-12
    # Witnesses are legal at the largest radius.
    assert found.pool.x_adv is not None
    assert bool((np.abs(found.pool.x_adv - X.numpy()[found.pool.points]) <= 0.2 + 1e-6).all())
    assert len(found.to_frame()) == 5 * 4
    assert [p["eps"] for p in found.to_json()["points"]] == [p.eps for p in found.points]
    found.plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes()[1:4] == b"PNG"
    for wrong in ("0:1", "1:0:3", "a:b:3", "0:0.1:x", [-1], []):
        with pytest.raises(InputError, match="eps is"):
            randens.curve(nets(), (X, Y), eps=wrong)


def test_a_curve_cannot_rise_even_if_an_attack_is_weaker_at_a_larger_radius() -> None:
    @dataclasses.dataclass(frozen=True)
    class OnlySmall(attacks.Attack):
        """Finds nothing beyond a radius of 0.1."""

        def search(self, s: attacks.Search) -> None:
            if s.threat.eps < 0.11:
                attacks.PGD(s.threat).search(s)

    found = randens.curve(nets(), (X, Y), OnlySmall(Threat("linf", 0.2)), eps=[0.1, 0.2])
    assert float(found.points[1].ensemble) == float(found.points[0].ensemble) < 1
    assert found.points[1].average == found.points[0].average


class Masked(nn.Module):
    """A classifier whose gradients are cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.net = convnet(0).eval()

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.net(x).detach()
        return z


class Meddling(nn.Module):
    """Has an effect before it answers."""

    def __init__(self, effect: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.net, self.effect = convnet(0), effect

    def forward(self, x: Tensor) -> Tensor:
        self.effect(x)
        z: Tensor = self.net(x)
        return z


def test_models_that_write_to_their_input_do_not_change_the_callers() -> None:
    x = X.clone()
    half = evaluate(nets()[0], (X / 2, Y), "fgsm", eps=0.01)
    for attack in ("random", "arc-r"):
        result = evaluate(Meddling(lambda given: given.mul_(0.5)).eval(), (x, Y), attack, eps=EPS)
        assert torch.equal(x, X)
        assert float(result.natural) == float(half.natural)


def test_models_do_not_change_torchs_settings() -> None:
    for effect in (
        lambda _: torch.set_default_dtype(torch.float64),
        lambda _: torch.set_default_device("meta"),
    ):
        with pytest.raises(ModelError, match="sets torch's default device and type"):
            evaluate(Meddling(effect).eval(), (X, Y), "pgd", eps=EPS)
    blind = Meddling(lambda _: torch.set_grad_enabled(False)).eval()
    with pytest.warns(RandensWarning, match="Gradients are missing"):
        evaluate(blind, (X, Y), "pgd", eps=EPS)
    assert torch.is_grad_enabled()
    assert (torch.get_default_device().type, torch.get_default_dtype()) == ("cpu", torch.float32)


@pytest.mark.parametrize("calls", [0, 4, 6])
def test_what_a_model_raises_arrives_and_everything_is_as_before(calls: int) -> None:
    left = iter(range(calls, 0, -1))
    model = Meddling(lambda _: 1 / next(left, 0)).train()
    state = torch.random.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        evaluate(model, (X, Y), "pgd", eps=EPS)
    assert model.training
    assert all(p.requires_grad for p in model.parameters())
    assert torch.equal(state, torch.random.get_rng_state())


FUNCTIONS: dict[str, Callable[..., Result]] = {
    "evaluate": randens.evaluate,
    "curve": randens.curve,
    "optimize_sampling": randens.optimize_sampling,
    "advise": randens.advise,
    "audit": randens.audit,
    "certify": randens.certify,
    "conflict": randens.conflict,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_signature_and_one_kind_of_result(name: str, tmp_path: Path) -> None:
    function = FUNCTIONS[name]
    linear = [randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=s) for s in (0, 1)]
    attack = () if name in ("certify", "conflict") else ("fgsm",)
    settings: dict[str, Any] = {"norm": "Linf", "eps": "1/255", "device": "cpu", "preprocessing": (0.5, 0.5)}
    settings |= {"probs": [0.25, 0.75], "split": "validation", "limit": 4, "seed": 1, "folder": tmp_path}
    found = function(linear, "digits", *attack, **settings)
    about = found.about
    assert (about.n, about.split, about.probs, about.seed) == (4, "validation", (0.25, 0.75), 1)
    assert about.threat["eps"] == pytest.approx(1 / 255)
    assert about.preprocessing == "(x − [0.5]) / [0.5]"
    assert "(x − [0.5]) / [0.5]" in repr(found)
    assert found._repr_html_().startswith("<table>")
    assert len(found.to_frame()) == len(found.table().records) > 0
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert (document["format"], document["notes"]) == (f"randens-{found.kind}-2", list(found.notes))
    assert json.loads(found.save(tmp_path / "r.json").read_text()) == document
    assert type(found).from_json(document).to_json() == document
    with pytest.raises(InputError, match=f"the {found.kind} is damaged"):
        type(found).from_json({key: document[key] for key in ("format", "about")})
    found.plot(tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes()[1:4] == b"PNG"
    arrays = ((X[:4] + 0).numpy(), Y[:4].tolist())
    again = function(RandomizedEnsemble(linear), arrays, *attack, threat=Threat("linf", 0.01))
    assert (again.about.n, again.about.threat["eps"]) == (4, 0.01)
    with pytest.raises(InputError, match="unknown argument 'epsilon'; did you mean eps"):
        function(linear, "digits", *attack, epsilon=0.1)
    for model in (None, 3, [], [3], {"a": linear[0]}):
        with pytest.raises(InputError, match=r"model is an? .*; give a module, a list of modules"):
            function(model, arrays, *attack, eps=EPS)


@pytest.mark.parametrize("name", ["evaluate", "curve", "optimize_sampling", "advise"])
def test_missing_gradients_are_a_warning_a_note_and_a_headline(name: str) -> None:
    with pytest.warns(RandensWarning, match="Gradients are missing"):
        result = FUNCTIONS[name](Masked().eval(), (X[:8], Y[:8]), "pgd", eps=EPS)
    assert [note for note in result.notes if "upper bounds" in note]
    assert repr(result).splitlines()[-len(result.sentences()) - 1].startswith("Note: Gradients are missing")


def test_a_radius_of_zero_is_the_natural_accuracy() -> None:
    result = evaluate(nets(), (X, Y), "pgd", eps=0)
    assert float(result.robust) == float(result.natural)
    assert Evaluation.from_json(result.to_json()).threat.eps == 0
