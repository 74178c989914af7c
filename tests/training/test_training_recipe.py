"""Recipes: values, messages that name the field, settings from the command line, the recipes we ship."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.training.small_runs import small

from randens.core.errors import FileError, InputError
from randens.training import find_recipe, load_recipe, shipped_recipes
from randens.training.recipe import difference, recipe_from

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
    ("changes", "message"),
    [
        ({"members": 0}, "members is 0; input should be greater than or equal to 1"),
        ({"epohs": 3}, "unknown field 'epohs'; did you mean 'epochs'?"),
        ({"optimizer": {"learning": 1}}, "unknown field 'optimizer.learning'"),
        ({"optimizer": {"momentun": 1}}, "did you mean 'momentum'?"),
        ({"method": "bare"}, "method is 'bare'.*'barre'"),
        ({"members": 2}, "members is 2; method 'at' trains exactly 1"),
        ({"method": "bat"}, "members is 1; method 'bat' needs at least 2"),
        ({"threat": {"eps": "8/0"}}, "threat.eps is '8/0'"),
        ({"threat": {"eps": -1}}, "threat.eps is -1; input should be greater than 0"),
        ({"optimizer": {"lr": float("inf")}}, "optimizer.lr is inf; input should be a finite number"),
        ({"schedule": {"name": "steps", "milestones": [5]}}, "schedule.milestones holds 5; there are only 2"),
        ({"adversary": "pgd"}, "adversary is 'pgd'"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"method": "joint", "members": 2, "start": "previous"}, "start is 'previous'; joint"),
    ],
)
def test_messages_name_the_field(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message.replace("?", r"\?")) as caught:
        small(**changes)
    assert "\n" not in str(caught.value)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(InputError, match="field 'epochs' is missing; field 'model' is missing"):
        recipe_from({"method": "at"})


@pytest.mark.parametrize("setting", ["optimizer.lr", "=3", "epochs.first=3"])
def test_bad_settings_are_refused(setting: str) -> None:
    with pytest.raises(InputError, match="--set"):
        small().with_settings([setting])


def test_files_that_are_not_recipes(tmp_path: Path) -> None:
    for name in (tmp_path / "none.toml", tmp_path, Path("/dev/zero")):
        with pytest.raises(FileError, match="cannot read"):
            load_recipe(name)
    (tmp_path / "bad.toml").write_text("method = \n")
    with pytest.raises(FileError, match="not valid TOML"):
        load_recipe(tmp_path / "bad.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(FileError, match="not valid TOML"):
        load_recipe(tmp_path / "binary.toml")


def test_differences_are_shown_with_dots() -> None:
    old = small().to_json()
    new = small(optimizer={"lr": 0.3}, epochs=5).to_json()
    assert difference(old, new) == ["epochs: 2 → 5", "optimizer.lr: 0.1 → 0.3"]
    assert difference(old, old) == []


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.toml")), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_recipe_we_ship_is_valid(path: Path) -> None:
    recipe = load_recipe(path)
    assert path.stem.endswith(recipe.method)
    assert path.stem.startswith(f"{recipe.data.name}-{recipe.model.name}")


def test_the_papers_table_is_complete() -> None:
    """Table 1: 3 networks × 2 data sets × 4 methods; tests of the paper's rules look at every setting."""
    sizes = {"resnet20": 5, "mobilenetv1": 5, "resnet18": 4}
    for folder in ("paper", "released"):
        for data in ("cifar10", "cifar100"):
            for network, members in sizes.items():
                for method in ("at", "iat", "mrboost", "barre"):
                    recipe = load_recipe(RECIPES / folder / f"{data}-{network}-{method}.toml")
                    assert recipe.members == (1 if method == "at" else members)
                    assert (recipe.data.crop_padding, recipe.data.flip) == (4, True)


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


@pytest.mark.parametrize(
    "setting",
    [
        *("epochs=1000000000", "members=65", "adversary.steps=1000000", "model.width=1000000", "weight=2"),
        *("threat.eps=1e400", "threat.eps='1e999999999'", "data.size=[100000, 8]", "optimizer.lr=inf"),
        *("epochs=" + "9" * 5000, "epochs=" + "[" * 5000, "model.options.a={b=1}", "first=''", "devices=0"),
    ],
    ids=lambda setting: setting[:30],
)
def test_numbers_have_limits(setting: str) -> None:
    with pytest.raises(InputError) as caught:
        small().with_settings([setting])
    assert len(str(caught.value)) < 400


def test_recipes_that_ship_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert set(shipped_recipes()) == {f"{p.parent.name}/{p.stem}" for p in RECIPES.rglob("*.toml")}
    wanted = RECIPES / "cpu" / "digits-mlp-barre.toml"
    for name in ("digits-mlp-barre", "cpu/digits-mlp-barre", "recipes/cpu/digits-mlp-barre.toml"):
        assert find_recipe(name) == wanted
    assert load_recipe("digits-mlp-barre", ["epochs=3"]) == load_recipe(wanted, ["epochs=3"])
    # Two folders have one of this name.
    with pytest.raises(
        InputError,
        match=r"several.*valid: cpu/cifar10-resnet20-barre, paper/cifar10-resnet20-barre, released/",
    ):
        find_recipe("cifar10-resnet20-barre")
    assert find_recipe("paper/cifar10-resnet20-barre") == RECIPES / "paper" / "cifar10-resnet20-barre.toml"
    with pytest.raises(InputError, match="unknown recipe 'digits-mlp-bare'; did you mean digits-mlp-barre"):
        find_recipe("digits-mlp-bare")
    # A file of one's own comes first.
    (tmp_path / "digits-mlp-barre").write_text(wanted.read_text())
    assert find_recipe("digits-mlp-barre") == Path("digits-mlp-barre")
