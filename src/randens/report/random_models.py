"""The section about a random model: accuracy against the number of draws, spread and reach between draws."""

from __future__ import annotations

from randens.report import charts, pieces
from randens.report.documents import StochasticNote
from randens.report.markup import Markup, element

__all__ = ["how_random"]


def how_random(note: StochasticNote) -> Markup:
    """What a random model's evaluation found, in sentences, two charts and a table."""
    return element(
        "div",
        [element("p", sentence) for sentence in note.statements],
        _draws(note),
        _spread(note),
        _adversaries(note),
        _noise(note),
    )


def _draws(note: StochasticNote) -> Markup:
    """Accuracy against K, on the attacked draws and on draws that the attack never saw."""
    attacked = [(float(stage.draws), stage.in_sample) for stage in note.stages]
    fresh = [(float(stage.draws), stage.fresh) for stage in note.stages]
    picture = charts.lines(
        [charts.Series("on the attacked draws", attacked), charts.Series("on fresh draws", fresh)],
        label="Accuracy against the number of attacked draws: "
        + "; ".join(f"{s.draws} draws {s.in_sample:.1%} and {s.fresh:.1%}" for s in note.stages),
        x_title="attacked draws K",
        y_title="accuracy",
    )
    body = [
        element(
            "tr",
            element("th", stage.draws, scope="row"),
            element("td", pieces.percent(stage.in_sample)),
            element("td", pieces.percent(stage.fresh)),
            element("td", f"{100 * (stage.fresh - stage.in_sample):+.1f}"),
        )
        for stage in note.stages
    ]
    return pieces.figure(
        picture,
        "Accuracy against the number of draws attacked. On the attacked draws it is too low, as the attack has fitted "
        "them; where both meet, more draws would change little.",
        pieces.table(("draws", "attacked", "fresh", "bias, points"), body),
    )


def _spread(note: StochasticNote) -> Markup:
    """Accuracies of single draws, sorted."""
    series = [
        charts.Series(name, [(i + 1.0, value) for i, value in enumerate(sorted(values))])
        for name, values in (("natural", note.spread.natural), ("robust", note.spread.robust))
    ]
    low, high = min(note.spread.robust, default=0.0), max(note.spread.robust, default=0.0)
    picture = charts.lines(
        series,
        label=f"Accuracies of {len(note.spread.robust)} single draws, sorted; robust from {low:.1%} to {high:.1%}",
        x_title="draws, sorted",
        y_title="accuracy",
    )
    return pieces.figure(
        picture,
        f"Spread between draws: each draw alone, on the same perturbed inputs. Its robust accuracy ranges from "
        f"{pieces.percent(low)} to {pieces.percent(high)}, with a standard deviation of "
        f"{100 * note.spread.deviation:.1f} points.",
    )


def _adversaries(note: StochasticNote) -> Markup:
    body = [
        element(
            "tr",
            element("th", one.name, scope="row"),
            element("td", one.draws if one.draws else "—"),
            element("td", pieces.percent(one.accuracy)),
            element("td", one.chosen),
        )
        for one in note.adversaries
    ]
    return pieces.table(
        ("adversary", "draws seen", "accuracy on fresh draws", "chosen for inputs"),
        body,
        "Each adversary's perturbations on draws that it never saw.",
    )


def _noise(note: StochasticNote) -> Markup:
    noise = note.noise
    facts = (
        ("reach between draws", f"{noise.reach:.2f}"),
        (f"cosine between gradients over {noise.draws} draws", f"{noise.agreement:.2f}"),
        ("cosine between gradients of single draws", f"{noise.single:.2f}"),
        (f"noise to signal over {noise.draws} draws", f"{noise.variance:.2f}"),
    )
    body = [element("tr", element("th", name, scope="row"), element("td", value)) for name, value in facts]
    return pieces.table(
        ("", ""),
        body,
        "Reach is the share of ε left to one perturbation that must serve all draws: 1 if they do not conflict.",
    )
