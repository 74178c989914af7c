"""A report's numbers come from the run's witness store: its sections agree, and no member is asked."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import safetensors
import torch
from tests.report.made_runs import THREAT, trained_ensemble

import randens
from randens.audit import audit
from randens.core.files import seal, write_json
from randens.core.progress import silent
from randens.core.runs import Run
from randens.ensemble import RandomizedEnsemble
from randens.evaluation import Evaluation
from randens.evaluation.attack_table import attack_all
from randens.evaluation.result_tables import percent
from randens.report import measure, write_report
from randens.report.from_store import from_store
from randens.report.load import LoadedRun, load_run
from randens.witness.store import WitnessStore, input_keys, member_key


def read_run(path: Path) -> LoadedRun:
    return from_store(load_run(path))


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run evaluated by a weak attack, then measured, and attacked by a strong one, all with one store."""
    rec, data = trained_ensemble(members=2, steps=20)
    recipe = {"method": "iat", "data": {"name": "digits"}}
    run = Run.create(tmp_path_factory.mktemp("runs") / "learnt", recipe=recipe, seed=0)
    rec.threat = THREAT
    rec.save(run.ensemble)
    store = WitnessStore(run.path / "witnesses")
    weak = randens.attacks.create("fgsm", THREAT)
    randens.evaluate(rec, data, weak, folder=store).save(run.path / "evaluation.json")
    measure(rec, data, THREAT, attack=("fgsm",), compared=("fgsm",), factors=(0.5, 1.0), folder=store).save(
        run
    )
    randens.attacks.create("saddle", THREAT).survey(rec, data, folder=store)
    return run.path


def asked(*_: object, **__: object) -> None:
    raise AssertionError("a member was asked")


def test_sections_agree_and_no_member_is_asked(learnt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = load_run(learnt)
    with monkeypatch.context() as patched:
        for layer in (torch.nn.Linear, torch.nn.Conv2d):
            patched.setattr(layer, "forward", asked)
        one = read_run(learnt)
        write_report([learnt])
    assert written.evaluation is not None
    assert one.evaluation is not None
    assert one.radii is not None
    assert float(one.evaluation.robust) < float(written.evaluation.robust)
    assert one.radii.radii[1].robust.value == pytest.approx(float(one.evaluation.robust), abs=1e-12)
    for member, accuracy in zip(one.radii.radii[1].members, one.evaluation.member_accuracies, strict=True):
        assert member.value == pytest.approx(accuracy.robust.value, abs=1e-12)
    assert one.evaluation.deterministic is not None
    assert one.radii.radii[1].deterministic is not None
    assert one.radii.radii[1].deterministic.value == pytest.approx(one.evaluation.deterministic.robust.value)
    values = [radius.robust.value for radius in one.radii.radii]
    assert values == sorted(values, reverse=True)
    assert one.evaluation.profile.risk(one.evaluation.probs) == pytest.approx(
        1 - float(one.evaluation.robust)
    )


def test_they_are_the_numbers_of_a_new_evaluation(learnt: Path) -> None:
    one = read_run(learnt)
    assert one.evaluation is not None
    rec, data = randens.load(learnt / "ensemble"), randens.data.load("digits", "test")
    again = randens.evaluate(
        rec,
        data.subset(slice(0, one.evaluation.n)),
        randens.attacks.create("fgsm", THREAT),
        folder=learnt / "witnesses",
    )
    assert again.now.backwards == 0
    assert float(again.robust) == pytest.approx(float(one.evaluation.robust), abs=1e-12)
    assert (again.points.foolable == one.evaluation.points.foolable).all()


def test_without_the_store_the_documents_are_shown(learnt: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(learnt, bare)
    shutil.rmtree(bare / "witnesses")
    written = load_run(bare)
    assert from_store(written) is written
    (bare / "witnesses").mkdir()  # begun anew: what the documents know is kept
    one = read_run(bare)
    assert written.evaluation is not None
    assert one.evaluation is not None
    assert float(one.evaluation.robust) == float(written.evaluation.robust)
    assert one.evaluation.points.sources == written.evaluation.points.sources
    assert one.radii == written.radii


def test_a_store_of_other_members_changes_nothing(learnt: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(learnt, other)
    shutil.rmtree(other / "ensemble")
    rec, _ = trained_ensemble(members=2, steps=5)
    rec.threat = THREAT
    rec.save(other / "ensemble")
    written = load_run(other)
    for reason in ("the evaluation is of other members or probabilities", "holds no ensemble yet"):
        one = from_store(written)
        assert one.evaluation is written.evaluation
        assert (one.radii, one.attacks, one.gallery) == (written.radii, written.attacks, written.gallery)
        assert not one.stored
        assert len(one.notes) == 1
        assert one.notes[0].startswith("The documents are shown, not the witness store: ")
        assert reason in one.notes[0]
        assert "The documents are shown, not the witness store" in write_report([other]).read_text()
        shutil.rmtree(other / "ensemble", ignore_errors=True)  # nor does an ensemble that is not there
    assert isinstance(written.evaluation, Evaluation)


def test_a_damaged_or_newer_store_is_named(learnt: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(learnt, damaged)
    segment = max(damaged.glob("witnesses/*/*.safetensors"), key=lambda path: path.stat().st_size)
    content = bytearray(segment.read_bytes())
    content[-1] ^= 255
    segment.write_bytes(content)
    one, written = read_run(damaged), load_run(damaged)
    assert [note for note in one.notes if "was damaged and is set aside" in note] == list(one.notes) != []
    assert "evaluation" in one.stored  # from the other segments, and never above the document
    assert one.evaluation is not None
    assert written.evaluation is not None
    assert float(one.evaluation.robust) <= float(written.evaluation.robust)
    newer = tmp_path / "newer"
    shutil.copytree(learnt, newer)
    write_json(newer / "witnesses" / "store.json", {"format": "randens-witness-store-9"})
    one = read_run(newer)
    assert not one.stored
    assert "randens-witness-store-9" in one.notes[0]
    assert "randens-witness-store-9" in write_report([newer]).read_text()


# ---- one store behind all sections -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """evaluate by a weak attack, attack, audit and measure: every document is older than the store's last witness."""
    rec, data = trained_ensemble(members=2, steps=20)
    data = data.subset(slice(0, 20))
    run = Run.create(
        tmp_path_factory.mktemp("runs") / "chain",
        recipe={"method": "iat", "data": {"name": "digits"}},
        seed=0,
    )
    rec = RandomizedEnsemble(list(rec.members), [0.75, 0.25], classes=rec.classes, threat=THREAT)
    rec.save(run.ensemble)
    store = WitnessStore(run.path / "witnesses")
    weak = randens.attacks.create("fgsm", THREAT)
    evaluation = randens.evaluate(rec, data, weak, folder=store)
    evaluation.save(run.path / "evaluation.json")
    factors = {"compared": ("fgsm",), "factors": (0.5, 1.0)}
    measure(rec, data, THREAT, attack=("fgsm",), folder=store, **factors).save(run)  # type: ignore[arg-type]
    chosen = [randens.attacks.create(name, THREAT, precision="float32") for name in ("pgd", "saddle")]
    attack_all(rec, data, chosen, store, silent)
    audit(rec, data, THREAT, evaluation=evaluation, folder=store).keep(run)
    randens.attacks.create("saddle", THREAT, orders=4).survey(rec, data, folder=store)
    return run.path


class Raw:
    """The segments of a store, read file by file without the package's reader."""

    def __init__(self, run: Path) -> None:
        self.rec, data = randens.load(run / "ensemble"), randens.data.load("digits", "test").subset(range(20))
        self.members = [member_key(member) for member in self.rec.members]
        self.keys = [bytes(key) for key in input_keys(data.x, data.y)]
        self.alpha = self.rec.probs.numpy()
        self.files = []
        for path in run.glob("witnesses/*/*.safetensors"):
            with safetensors.safe_open(path, framework="numpy") as file:
                names = list(file.keys())
                self.files.append(({name: file.get_tensor(name) for name in names}, file.metadata()))

    def alone(self, attack: str, members: list[str], probs: list[float], **options: object) -> float:
        """The mean risk of one search."""
        risks: dict[bytes, float] = {}
        for tensors, about in self.files:
            asked = json.loads(about.get("asked", "{}"))
            same = asked.get("attack") == attack and asked["alone"] and asked["eps"] == THREAT.eps
            same = same and (asked["members"], asked["probs"]) == (members, probs)
            if same and all(asked["options"][name] == value for name, value in options.items()):
                for key, outcome in zip(tensors["work.inputs"], tensors["work.outcome"], strict=True):
                    risks[bytes(key)] = float(outcome @ np.array(probs))
        return float(np.mean([risks[key] for key in self.keys]))

    def risks(self, eps: float) -> list[float]:
        """The largest risk of each input over all points within `eps`, whichever search found them."""
        near: dict[bytes, bytes] = {}
        fooled: dict[bytes, dict[str, bool]] = defaultdict(dict)
        for tensors, about in sorted(self.files, key=lambda file: int(file[1]["made"])):
            for row, point in enumerate(map(bytes, tensors["ids"])):
                if "distance" in tensors and tensors["distance"][row] <= eps:
                    near[point] = bytes(tensors["inputs"][row])
                verdicts = zip(json.loads(about["members"]), tensors["fooled"][row] == 1, strict=True)
                fooled[point].update(verdicts)
        worst = dict.fromkeys(self.keys, 0.0)
        for point, key in near.items():
            if key in worst:
                risk = sum(
                    a * fooled[point].get(m, False) for a, m in zip(self.alpha, self.members, strict=True)
                )
                worst[key] = max(worst[key], float(risk))
        return [worst[key] for key in self.keys]


def section(page: str, name: str) -> str:
    found = re.search(rf'<section aria-labelledby="{name}".*?</section>', page, flags=re.S)
    assert found is not None
    return " ".join(re.sub(r"<[^>]+>", " ", found.group(0)).split())


def page_without_passes(run: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    with monkeypatch.context() as patched:
        for layer in (torch.nn.Linear, torch.nn.Conv2d):
            patched.setattr(layer, "forward", asked)
        return write_report([run]).read_text()


def test_every_section_has_the_numbers_of_one_store(chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, raw = page_without_passes(chain, monkeypatch), Raw(chain)
    one, written = read_run(chain), load_run(chain)
    assert one.stored == {"evaluation", "radii", "attacks", "gallery", "audit"}
    assert written.evaluation is not None
    robust = 1 - float(np.mean(raw.risks(THREAT.eps)))
    assert robust < float(written.evaluation.robust)  # the document is older, and its number is shown nowhere
    header = page[page.index("<header") : page.index("</header>")]
    assert header.count(f"Robust accuracy {percent(robust)}") == 1
    assert header.count(percent(robust)) == 1
    assert percent(robust) in section(page, "results")
    for shown in (header, section(page, "results"), section(page, "radius-0")):
        assert percent(float(written.evaluation.robust)) not in shown
    about = "digits test, 20 inputs"
    assert f"{about}, attacked with fgsm and, by other commands, " in header
    # Over ε
    text = section(page, "radius-0")
    for eps in (0.5 * THREAT.eps, THREAT.eps):
        assert f"{eps:.4g} {percent(1 - float(np.mean(raw.risks(eps))))} " in text
    assert f"{about}, attacked with fgsm, linf; read from the witness store" in text
    # Attacks alone
    text, own = section(page, "attacks-0"), (raw.members, raw.alpha.tolist())
    for label, options in (
        ("pgd (float32)", {"precision": "float32"}),
        ("saddle (float32)", {"precision": "float32"}),
        ("saddle (orders=4)", {"precision": "auto", "orders": 4}),
        ("adaptive-pgd-margin (steps=40, float32)", {"precision": "float32", "steps": 40}),
    ):
        value = percent(1 - raw.alone(label.split()[0], *own, **options))
        assert f" {label} 20 {value} " in text
    assert f"{about}, linf ε = 0.1; read from the witness store" in text
    assert "all together" not in text  # that is the robust accuracy of the results
    # Pictures
    assert one.gallery is not None
    assert one.gallery.examples
    for example in one.gallery.examples:
        assert example.risk == pytest.approx(raw.risks(THREAT.eps)[example.index])
        assert sum(raw.alpha[example.wrong]) == pytest.approx(example.risk)
    assert f"{about}, linf ε = 0.1" in section(page, "gallery-0")
    # The audit
    text = section(page, "audit-0")
    alone = [raw.alone("pgd", [m], [1.0], precision="float32") for m in raw.members]
    together = raw.alone("pgd", *own, precision="float32")
    for who, risk in (("member 0", alone[0]), ("member 1", alone[1]), ("the ensemble", together)):
        assert f"{who} {risk:.1%} and " in text
    assert f"reported risk on the first 20 inputs {1 - robust:.1%}, found here" in text
    assert f"({about}, linf ε = 0.1; read from the witness store.)" in text
    assert one.audit is not None
    assert {"outputs", "deterministic", "consistency"} <= set(one.audit.kept)
    assert not {"iterative-beats-single-step", "white-box-beats-transfer", "members-alone"} & set(
        one.audit.kept
    )


def test_pictures_are_those_of_the_store(chain: Path) -> None:
    """Who is fooled is a verdict of the store; the members give it again on the stored points."""
    one, rec = read_run(chain), randens.load(chain / "ensemble")
    data = randens.data.load("digits", "test").subset(range(20))
    found = randens.evaluate(rec, data, randens.attacks.create("fgsm", THREAT), folder=chain / "witnesses")
    assert one.gallery is not None
    assert found.pool is not None
    worst = randens.evaluation.worst_inputs(found.pool, rec.probs, data.x)
    for example in one.gallery.examples:
        wrong = rec.errors(worst[[example.index]], data.y[[example.index]])[0].nonzero().flatten().tolist()
        assert sum(rec.probs[wrong]) == pytest.approx(example.risk)


def test_a_document_that_disagrees_is_not_shown(
    chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of older documents, altered here so that they cannot be met by chance, give way to the store's."""
    run = tmp_path / "chain"
    shutil.copytree(chain, run)
    before = page_without_passes(run, monkeypatch)
    table = json.loads((run / "report" / "attacks.json").read_text())
    table["attacks"][0]["robust"]["value"] = 0.87654
    write_json(run / "report" / "attacks.json", seal(table))
    document = json.loads((run / "audit.json").read_text())
    for check in document["checks"]:
        if check["name"] == "evaluation-not-beaten":
            check |= {"passed": False, "finding": "reported risk 87.654%", "advice": "evaluate again"}
    write_json(run / "audit.json", seal({**document, "passed": False, "verdict": "1 check failed"}))
    page = page_without_passes(run, monkeypatch)
    assert "87.6" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.S)
    assert [section(page, name) for name in ("attacks-0", "audit-0")] == [
        section(before, name) for name in ("attacks-0", "audit-0")
    ]
    # Without the store they are shown, and their sections name the documents.
    shutil.rmtree(run / "witnesses")
    page = page_without_passes(run, monkeypatch)
    assert "87.7 %" in section(page, "attacks-0")
    assert "digits test, 20 inputs, linf ε = 0.1; from report/attacks.json" in section(page, "attacks-0")
    assert "reported risk 87.654%" in section(page, "audit-0")
    assert "(digits test, 20 inputs, linf ε = 0.1; from audit.json.)" in section(page, "audit-0")
    assert "digits test, 20 inputs, linf ε = 0.1" in section(page, "gallery-0")
    assert "from report/gallery.json" in section(page, "gallery-0")
    assert "from report/radii.json" in section(page, "radius-0")


def test_attacks_that_only_the_document_knows_are_kept(chain: Path, tmp_path: Path) -> None:
    run = tmp_path / "chain"
    shutil.copytree(chain, run)
    table = json.loads((run / "report" / "attacks.json").read_text())
    table["attacks"].append({**table["attacks"][0], "name": "lattice"})
    write_json(run / "report" / "attacks.json", seal(table))
    one = read_run(run)
    assert one.attacks is not None
    assert [line.name for line in one.attacks.attacks if line.kept] == ["lattice"]
    text = section(write_report([run]).read_text(), "attacks-0")
    assert "Not in the witness store, from report/attacks.json: lattice." in text


def test_a_store_without_an_evaluation_is_read(chain: Path, tmp_path: Path) -> None:
    """`attack` alone is enough for the table of attacks and the pictures, on the inputs that were attacked."""
    run = tmp_path / "chain"
    shutil.copytree(chain, run)
    (run / "evaluation.json").unlink()
    shutil.rmtree(run / "report")
    one, known = read_run(run), read_run(chain)
    assert known.attacks is not None
    assert one.attacks is not None
    assert one.attacks.n == 20
    assert {line.label: line.robust for line in one.attacks.attacks} == {
        line.label: line.robust for line in known.attacks.attacks
    }
    assert one.gallery is not None
    assert "has not been evaluated" in write_report([run]).read_text()
