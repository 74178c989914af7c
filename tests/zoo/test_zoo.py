"""The zoo: what goes in comes out unchanged, damaged or foreign files are refused, pages are made from files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from paper.results_page import best_ensembles, results
from tests.cli.commands import Shell, shell
from tests.training.small_runs import small

import randens
from randens import attacks, data, evaluation, training, zoo
from randens.core.errors import FileError, InputError
from randens.core.files import seal, write_json
from randens.evaluation import Evaluation
from randens.evaluation.result_tables import count, percent

__all__ = ["shell"]

RADIUS = {"norm": "linf", "eps": 0.1}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AT and BARRE on digits, evaluated on the same 40 test images."""
    folder = tmp_path_factory.mktemp("runs")
    images = data.load("digits", "test").subset(slice(0, 40))
    for name, changes in {"at": {}, "barre": {"method": "barre", "members": 2}}.items():
        rec = training.train(small(threat=RADIUS, **changes), folder / name)
        assert rec.threat is not None
        attack = attacks.create("pgd", rec.threat, steps=3)
        evaluation.evaluate(rec, images, attack).save(folder / name / "evaluation.json")
    return folder


@pytest.fixture
def filled(tmp_path: Path, runs: Path) -> Path:
    """A zoo with both."""
    place = tmp_path / "zoo"
    place.mkdir()
    for name in ("at", "barre"):
        zoo.add(runs / name, f"digits-{name}", place, commit="abc")
    return place


def test_what_goes_in_comes_out(filled: Path, runs: Path, tmp_path: Path) -> None:
    assert zoo.names(filled) == ("digits-at", "digits-barre")
    before, after = randens.load(runs / "barre" / "ensemble"), zoo.load("digits-barre", filled)
    assert torch.equal(before.probs, after.probs)
    for one, two in zip(before.parameters(), after.parameters(), strict=True):
        assert torch.equal(one, two)
    taken = zoo.take("digits-barre", tmp_path / "mine", filled)
    assert randens.load(taken.ensemble).probs.tolist() == before.probs.tolist()
    assert not (taken.path / "checkpoints").exists()
    assert zoo.entry("digits-at", filled).run.manifest["git_commit"] is not None


def test_adding_again_replaces_and_leaves_nothing_behind(filled: Path, runs: Path) -> None:
    zoo.add(runs / "barre", "digits-at", filled)
    assert len(zoo.load("digits-at", filled)) == 2
    assert sorted(path.name for path in filled.iterdir()) == ["digits-at", "digits-barre"]


def test_paths_of_the_machine_stay_outside(runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    zoo_folder = tmp_path / "zoo"
    zoo_folder.mkdir()
    training.train(small(threat=RADIUS, method="barre", members=2, first=str(runs / "at")), run)
    zoo.add(run, "shared-first", zoo_folder)
    assert str(runs) not in (zoo_folder / "shared-first" / "manifest.json").read_text(encoding="utf-8")
    assert zoo.entry("shared-first", zoo_folder).recipe["first"] == "at"


def test_commands_lose_places_and_nothing_else(runs: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs / "at", tmp_path / "run"))
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    words = [
        "train",
        str(tmp_path / "r.toml"),
        "--set",
        "adversary.step=6/255",
        "--set",
        f'first=["{tmp_path / "c"}", "runs/d"]',
    ]
    earlier = [{**manifest["recipe"], "first": str(tmp_path / "c")}]
    changed = {**manifest, "command": words, "earlier_recipes": earlier}
    write_json(run / "manifest.json", seal(changed))
    entry = zoo.add(run, "mine", tmp_path)
    assert entry.run.manifest["earlier_recipes"][0]["first"] == "c"
    kept = entry.run.manifest["command"]
    assert kept == ["train", "r.toml", "--set", "adversary.step=6/255", "--set", 'first=["c", "d"]']


def test_damage_is_noticed(filled: Path) -> None:
    member = filled / "digits-at" / "ensemble" / "member-00.safetensors"
    content = bytearray(member.read_bytes())
    content[-1] ^= 1
    member.write_bytes(bytes(content))
    with pytest.raises(FileError, match="member-00"):
        zoo.load("digits-at", filled)
    file = filled / "digits-barre" / "evaluation.json"
    file.write_text(file.read_text(encoding="utf-8").replace('"split": "test"', '"split": "train"'))
    with pytest.raises(FileError, match="altered"):
        zoo.entry("digits-barre", filled)


def test_bad_input_is_named(filled: Path, runs: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="digits-at"):
        zoo.load("digits-att", filled)
    with pytest.raises(InputError, match="Bad Name"):
        zoo.add(runs / "at", "Bad Name", filled)
    with pytest.raises(FileError, match="exists already"):
        zoo.take("digits-at", tmp_path, filled)
    (tmp_path / "foreign").mkdir()
    with pytest.raises(FileError, match=r"manifest\.json"):
        zoo.add(tmp_path / "foreign", "foreign", filled)


def test_an_evaluation_of_other_members_is_refused(runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    training.train(small(threat=RADIUS, seed=5), run)
    (run / "evaluation.json").write_bytes((runs / "at" / "evaluation.json").read_bytes())
    with pytest.raises(InputError, match="other members"):
        zoo.add(run, "mixed", tmp_path)


def test_the_card_says_what_the_files_say(filled: Path) -> None:
    entry = zoo.entry("digits-barre", filled)
    text = zoo.card(entry)
    main = entry.evaluations["evaluation"]
    assert f"{100 * main.robust:.1f} %" in text
    assert f"{entry.training['cost']['forwards']:,} forward" in text
    assert "pgd" in text
    assert "first 40 images of digits test" in text


def test_the_card_shows_k_of_m_of_its_own_members(filled: Path, runs: Path, tmp_path: Path) -> None:
    rec = randens.load(runs / "barre" / "ensemble")
    assert rec.threat is not None
    images = data.load("digits", "test").subset(slice(0, 40))
    advice = evaluation.advise(rec, images, attacks.create("pgd", rec.threat, steps=3))
    run = tmp_path / "barre"
    shutil.copytree(runs / "barre", run)
    advice.save(run / "advice.json")
    text = zoo.card(zoo.add(run, "digits-barre", filled))
    for option in advice.options:
        assert f"| {' | '.join(option.cells)} |" in text
    assert f"deterministic, all {len(rec)}" in text
    advice.save(runs / "at" / "advice.json")
    try:
        with pytest.raises(InputError, match="other members"):
            zoo.add(runs / "at", "digits-at", filled)
    finally:
        (runs / "at" / "advice.json").unlink()


def test_the_best_ensembles_are_those_of_the_cards(filled: Path, tmp_path: Path) -> None:
    entries = [zoo.entry(name, filled) for name in zoo.names(filled)]
    (said,) = best_ensembles(entries)  # no entry has advice
    main = entries[1].evaluations["evaluation"]
    best = max(a.robust.value for a in main.member_accuracies)
    assert f"is `digits-barre`: {percent(main.robust)} (" in said
    assert f"its best member {percent(best)} (40 test images)" in said
    assert ("nothing is drawn" in said) == (main.probs.max() == 1)
    # Of two entries with advice, the one whose k of M is more robust.
    rec = training.train(small(threat=RADIUS, method="iat", members=3), tmp_path / "three")
    assert rec.threat is not None
    images = data.load("digits", "test").subset(slice(0, 40))
    found = {}
    for name, attack in (("weak", "pgd"), ("strong", "saddle")):
        run = Path(shutil.copytree(tmp_path / "three", tmp_path / name))
        found[name] = evaluation.advise(rec, images, attacks.create(attack, rec.threat))
        found[name].save(run / "advice.json")
        zoo.add(run, name, filled)
    robust = {
        name: max(o.accuracy.robust.value for o in advice.options if o.kind == "subset")
        for name, advice in found.items()
    }
    said = best_ensembles([zoo.entry(name, filled) for name in zoo.names(filled)])[1]
    assert f"2 of 3 averaged, {percent(max(robust.values()))} (" in said
    assert any(f"`{name}`" in said for name, value in robust.items() if value == max(robust.values()))


def test_the_zoos_page_names_the_best_ensembles() -> None:
    said = best_ensembles([zoo.entry(name) for name in zoo.names()])
    page = " ".join((zoo.root().parent / "docs" / "zoo.md").read_text(encoding="utf-8").split())
    assert len(said) == 2
    for sentence in said:
        assert sentence in page


def test_results_compare_image_by_image(filled: Path) -> None:
    page = results(filled)
    one, two = (zoo.entry(f"digits-{name}", filled).evaluations["evaluation"] for name in ("barre", "at"))
    gain = 100 * float(np.mean(two.risk - one.risk))
    assert f"| BARRE | {gain:+.1f} (" in page
    assert one.deterministic is not None
    averaged = 100 * (one.deterministic.robust.value - two.robust)
    (row,) = [
        line
        for line in page.splitlines()
        if line.startswith("| BARRE, mean of all logits | ") and " to " in line
    ]
    assert f" {averaged:+.1f} (" in row
    assert f"{sum(one.flops) / two.flops[0]:.2f} times the FLOPs" in row
    best = max(a.robust.value for a in one.member_accuracies)
    drawn = f"drawing at random is worth {100 * (one.robust - best):+.1f} points"
    assert (drawn in page) == (one.probs.max() < 1)
    assert ("nothing is drawn" in page) == (one.probs.max() == 1)
    # Nothing else took as many passes as BARRE did.
    assert "the same number of training passes" not in page
    goal = 100 * (0.65 - two.natural)
    verdict = f"missed by {goal:.1f} points" if goal > 0 else "met"
    assert f"AT, natural accuracy: {100 * two.natural:.1f}, wanted at least 65: {verdict}" in page


def test_results_count_what_a_run_builds_on_once(runs: Path, tmp_path: Path) -> None:
    """AT trained on, and IAT from both: their titles, their passes, the spread over the members."""
    place = tmp_path / "zoo"
    place.mkdir()
    images = data.load("digits", "test").subset(slice(0, 40))
    at, more, both = runs / "at", tmp_path / "more", tmp_path / "both"
    training.train(small(threat=RADIUS, first=str(at), epochs=2), more)
    training.train(small(threat=RADIUS, method="iat", members=2, first=[str(at), str(more)]), both)
    for run in (more, both):
        rec = randens.load(run / "ensemble")
        assert rec.threat is not None
        evaluation.evaluate(rec, images, attacks.create("pgd", rec.threat, steps=3)).save(
            run / "evaluation.json"
        )
    for run in (at, more, both):
        zoo.add(run, run.name, place)
    spent = {name: zoo.entry(name, place).training["cost"]["forwards"] for name in ("at", "more", "both")}
    epochs = sum(zoo.entry(name, place).recipe["epochs"] for name in ("at", "more"))
    page = results(place)
    lines = {line.split(" | ")[0]: line for line in reversed(page.splitlines())}
    assert f" {count(spent['at'] + spent['more'])} " in lines[f"| AT, {epochs} epochs"]
    assert f" {count(sum(spent.values()))} " in lines["| IAT"]
    natural = [a.natural.value for a in zoo.entry("both", place).evaluations["evaluation"].member_accuracies]
    spread = 100 * abs(natural[0] - natural[1]) / 2**0.5
    # An ensemble whose training took as many passes is listed with BARRE.
    zoo.add(runs / "barre", "barre", place)
    zoo.add(runs / "barre", "twin", place)
    accuracies = zoo.entry("barre", place).evaluations["evaluation"]
    shown = f"{percent(accuracies.natural)} natural, {percent(accuracies.robust)} robust"
    assert f"BARRE (`barre`) {shown}; BARRE (`twin`) {shown}" in results(place)
    assert f"mean {percent(sum(natural) / 2)}, standard deviation {spread:.1f} points" in page
    pair = zoo.entry("both", place).evaluations["evaluation"]
    evenly = f"Drawn evenly they have at most {percent(pair.at(None).robust.value)} robust"
    assert (evenly in page) == (pair.probs.tolist() != [0.5, 0.5])
    assert "2 epochs on from `at`, batches" in zoo.card(zoo.entry("more", place))
    assert "Members taken from `at`, `more`, batches" in zoo.card(zoo.entry("both", place))


def test_results_say_where_the_points_come_from(runs: Path, tmp_path: Path) -> None:
    """An ensemble's advantage over its first member: drawing, and what its members gained by their training."""
    place, run = tmp_path / "zoo", tmp_path / "barre"
    place.mkdir()
    rec = training.train(small(threat=RADIUS, method="barre", members=2, first=str(runs / "at")), run)
    rec = rec.with_probs([0.5, 0.5])
    assert rec.threat is not None
    rec.save(run / "ensemble", overwrite=True)
    images = data.load("digits", "test").subset(slice(0, 40))
    found = evaluation.evaluate(rec, images, attacks.create("pgd", rec.threat, steps=3))
    found.save(run / "evaluation.json")
    zoo.add(runs / "at", "at", place)
    zoo.add(run, "barre", place)
    before = zoo.entry("at", place).evaluations["evaluation"]
    page = results(place)
    gain = 100 * (found.robust - before.robust)
    verdict = "met" if gain >= 3 else f"missed by {3 - gain:.1f} points"
    assert (
        f"BARRE above its first member, AT, robust accuracy: {gain:.1f}, wanted at least 3: {verdict}" in page
    )
    trained = 100 * (np.mean([a.robust.value for a in found.member_accuracies]) - before.robust)
    said = f"drawing is worth {100 * found.gain:+.1f} points; the members that are drawn have {trained:+.1f} over AT"
    assert (said in page) == (gain < 3)
    # The two together are the whole advantage.
    assert 100 * found.gain + trained == pytest.approx(gain)


def test_trials_are_kept_without_members_and_shown(
    shell: Shell, filled: Path, runs: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    rec = training.train(small(threat=RADIUS, method="barre", members=2, sampling={"floor": 1.5}), run)
    assert rec.threat is not None
    with pytest.raises(FileError, match="has not been evaluated"):
        zoo.keep_trial(run, "leaning", filled)
    images = data.load("digits", "validation").subset(slice(0, 40))
    found = evaluation.evaluate(rec, images, attacks.create("pgd", rec.threat, steps=3), deterministic=False)
    found.save(run / "evaluation.json")
    code, out, _ = shell("zoo", "trial", str(run), "leaning", "--zoo", str(filled))
    assert code == 0
    assert "leaning" in out
    assert zoo.names(filled) == ("digits-at", "digits-barre")
    (kept,) = zoo.trials(filled)
    assert not kept.run.ensemble.exists()
    # The member trained last is what the settings made; α leant towards it.
    robust = found.member_accuracies[-1].robust.value
    line = next(line for line in results(filled).splitlines() if line.startswith("| leaning "))
    assert f"{100 * robust:.1f} %" in line
    assert "≥ 0.75" in line
    with pytest.raises(InputError, match="is on test data; settings are compared on validation data"):
        zoo.keep_trial(runs / "barre", "peeking", filled)
    with pytest.raises(InputError, match="name is 'trials'"):
        zoo.add(runs / "at", "trials", filled)


def test_numbers_alone(shell: Shell, filled: Path, runs: Path) -> None:
    whole = zoo.entry("digits-barre", filled)
    code, _, _ = shell(
        "zoo", "add", str(runs / "barre"), "digits-numbers", "--zoo", str(filled), "--no-members"
    )
    assert code == 0
    kept = zoo.entry("digits-numbers", filled)
    assert not kept.ships
    assert np.array_equal(kept.evaluations["evaluation"].risk, whole.evaluations["evaluation"].risk)
    with pytest.raises(FileError, match="digits-numbers is in the zoo for its numbers alone"):
        kept.load()
    text = (kept.run.path / "CARD.md").read_text(encoding="utf-8")
    assert f"α = ({', '.join(f'{p:.4g}' for p in whole.load().probs.tolist())})" in text
    assert "the members are not shipped" in text
    assert "SHA-256" not in text
    code, out, _ = shell("zoo", "list", "--zoo", str(filled))
    assert out.splitlines()[-1] == "Numbers only, without members: digits-numbers"
    code, _, error = shell("zoo", "load", "digits-numbers", "--zoo", str(filled))
    assert code == 2
    assert "without its members" in error


def test_commands(shell: Shell, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = shell("zoo", "list", "--zoo", str(filled), "--json")
    assert code == 0
    listed = {row["name"]: row for row in json.loads(out)}
    assert listed["digits-barre"]["members"] == 2
    assert listed["digits-at"]["images"] == 40
    code, out, _ = shell("zoo", "load", "digits-at", "--zoo", str(filled))
    assert code == 0
    assert (tmp_path / "runs" / "digits-at" / "ensemble").is_dir()
    code, out, _ = shell("zoo", "card", "digits-at", "--zoo", str(filled))
    assert (code, out) == (0, zoo.card(zoo.entry("digits-at", filled)))
    code, out, error = shell("zoo", "card", "digits", "--zoo", str(filled))
    assert code == 2
    assert "digits-at" in error


def test_what_ships_is_whole_and_small() -> None:
    sizes = 0
    for name in zoo.names():
        entry = zoo.entry(name)
        if entry.ships:
            rec = entry.load()
            for found in entry.evaluations.values():
                found.check(rec)
        else:
            assert entry.evaluations
        assert (entry.run.path / "CARD.md").read_text(encoding="utf-8") == zoo.card(entry)
        sizes += sum(path.stat().st_size for path in entry.run.path.rglob("*") if path.is_file())
    assert 0 < sizes < 15e6


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n for n in zoo.names() if (zoo.root() / n / "evaluation-200.json").exists()]
)
def test_the_card_is_reproduced_image_by_image(name: str) -> None:
    entry = zoo.entry(name)
    kept = entry.evaluations["evaluation-200"]
    images = data.load(kept.data, kept.split).subset(slice(0, kept.n))
    rec, options = entry.load(), dict(kept.attacks[0])
    name_of_attack = options.pop("name")

    def evaluated(factor: float) -> Evaluation:
        attack = attacks.create(name_of_attack, kept.threat.scaled(factor), **options)
        return evaluation.evaluate(rec, images, attack, deterministic=False)

    def changed(one: Evaluation, two: Evaluation, verdicts: str) -> NDArray[np.bool_]:
        differ: NDArray[np.bool_] = getattr(one.points, verdicts) != getattr(two.points, verdicts)
        return np.asarray(differ.any(axis=1))

    # On the machine that made the card, every verdict is the same. Elsewhere logits differ in their last digits, and
    # a verdict may change where they decide it: on a clean image whose logits are tied, and under attack where a
    # thousandth of the radius decides it, too. These near ties are counted, and nothing else may change.
    again, other_radii = evaluated(1.0), [evaluated(0.999), evaluated(1.001)]
    with torch.no_grad():
        first, second = rec.logits(images[:][0]).topk(2, dim=2).values.unbind(dim=2)
    tied = (first - second <= 1e-4 * first.abs()).any(dim=0).numpy()
    assert not (changed(again, kept, "clean") & ~tied).any()
    near = {
        verdicts: tied | np.any([changed(again, other, verdicts) for other in other_radii], axis=0)
        for verdicts in ("worst", "foolable")
    }
    for verdicts, allowed in near.items():
        assert allowed.mean() <= 0.05 + again.flags["unstable"], verdicts
        assert not (changed(again, kept, verdicts) & ~allowed).any(), verdicts
    assert abs(float(again.robust) - float(kept.robust)) <= near["worst"].mean()
