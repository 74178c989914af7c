"""Recipes: values, messages that name the field, settings from the command line, the recipes we ship."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.training.small_runs import small

from randens.core.errors import InputError
from randens.training import find_recipe, load_recipe, shipped_recipes

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def test_fractions_and_settings(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(
        'method = "at"\nepochs = 3\n[model]\nname = "mlp"\n[data]\nname = "digits"\n[threat]\neps = "8/255"\n'
    )
    recipe = load_recipe(path, ["optimizer.lr=0.05", "adversary.step=2/255", "first=none", "ema=0.9"])
    assert recipe.threat.eps == pytest.approx(8 / 255)
    assert recipe.adversary.step == pytest.approx(2 / 255)
    assert (recipe.optimizer.lr, recipe.ema, recipe.first) == (0.05, 0.9, None)
    assert recipe.threat.build().bounds == (0.0, 1.0)
    assert load_recipe(path, ["loss.name=trades"]).loss.name == "trades"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("members=0", "members is 0; input should be greater"),
        ("members=2", "members is 2; method 'at' trains exactly 1"),
        ("epohs=3", "unknown field 'epohs'; did you mean 'epochs'"),
        ("-=1", "unknown field '-'"),
        ("members=0x" + "f" * 5000, "members is an integer of thousands of digits"),
        ("method=bare", "method is 'bare'.*'barre'"),
        ("threat.eps=8/0", "threat.eps is '8/0'"),
        ("optimizer.lr=inf", "optimizer.lr is inf; input should be a finite number"),
        ("schedule.milestones=[5]", "schedule.milestones holds 5; there are only 2"),
        ("adversary=pgd", "adversary is 'pgd'"),
        ("model.options.seed=3", "model.options sets seed"),
        ("adversary={name='arc', loss='mce'}", "climb something else"),
        ("sampling.final=checkpoint", "sampling.final is for method 'barre'"),
        ("first=['a', 'b']", "first names 2 runs; there are only 1 members"),
        ("optimizer.lr", "not of the form key=value"),
        ("epochs.first=3", "is a single value"),
        # Numbers have limits.
        *((f"{key}=1000000000", key) for key in ("epochs", "members", "adversary.steps", "weight")),
        ("threat.eps='1e999999999'", "threat.eps"),
        ("epochs=" + 5000 * "9", "epochs"),
        ("model.options.a={b=1}", "options.a"),
        ("devices=0", "devices is 0; input should be greater"),
    ],
    ids=lambda text: text[:30],
)
def test_messages_name_the_field(setting: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        small().with_settings([setting])
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.toml")), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_recipe_we_ship_is_valid(path: Path) -> None:
    recipe = load_recipe(path)
    assert path.stem.endswith(recipe.method)
    assert path.stem.startswith(f"{recipe.data.name}-{recipe.model.name}")


@pytest.mark.parametrize("path", sorted((RECIPES / "released").glob("*.toml")), ids=lambda path: path.stem)
def test_the_released_program_differs_from_the_text_in_these_settings(path: Path) -> None:
    text, released = load_recipe(RECIPES / "paper" / path.name), load_recipe(path)
    expected = ["data.rotation: 0.0 → 15.0"] if released.data.name == "cifar100" else []
    if released.method == "barre":
        expected += ["sampling.begin: 'uniform' → 'current'", "sampling.final: 'chosen' → 'checkpoint'"]
    expected.append("sampling.size: 2048 → 4096")
    if released.method != "barre":
        expected.append("sampling.step: 1.0 → 2.0")
    assert text.changes(released) == expected


def test_recipes_that_ship_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert set(shipped_recipes()) == {f"{p.parent.name}/{p.stem}" for p in RECIPES.rglob("*.toml")}
    wanted = RECIPES / "cpu" / "digits-mlp-barre.toml"
    for name in ("digits-mlp-barre", "cpu/digits-mlp-barre", "recipes/cpu/digits-mlp-barre.toml"):
        assert find_recipe(name) == wanted
    assert load_recipe("digits-mlp-barre", ["epochs=3"]) == load_recipe(wanted, ["epochs=3"])
    # Two folders have one of this name.
    with pytest.raises(
        InputError, match=r"several.*valid: cpu/cifar10-resnet20-barre, paper/cifar10-resnet20-ba"
    ):
        find_recipe("cifar10-resnet20-barre")
    assert find_recipe("paper/cifar10-resnet20-barre") == RECIPES / "paper" / "cifar10-resnet20-barre.toml"
    with pytest.raises(InputError, match="unknown recipe 'digits-mlp-bare'; did you mean digits-mlp-barre"):
        find_recipe("digits-mlp-bare")
    # A file of one's own comes first.
    (tmp_path / "digits-mlp-barre").write_text(wanted.read_text())
    assert find_recipe("digits-mlp-barre") == Path("digits-mlp-barre")
