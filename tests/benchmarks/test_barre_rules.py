"""The table of BARRE's rules for α in docs/paper.md is the one that was measured."""

from __future__ import annotations

import json

from benchmarks.barre_rules import PAGE, RESULTS, RULES, page, recipe, table


def test_the_page_holds_what_was_measured() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text
    assert table() in text


def test_the_printed_rule_loses_a_member_and_the_released_one_does_not() -> None:
    """What the page says in words, looked up in the numbers behind it."""
    runs = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"]
    pairs = {
        rule: [r for r in runs if (r["data"], r["members"], r["rule"]) == ("digits", 2, rule)]
        for rule in RULES
    }
    assert {rule: len(found) for rule, found in pairs.items()} == {"printed": 3, "floor": 3, "released": 3}
    lost = [r for r in pairs["printed"] if r["alone"][-1] < 0.5 * r["alone"][0]]
    assert len(lost) == 2
    assert all(r["without_last"] > 0.9 for r in lost)
    for rule in ("floor", "released"):
        assert all(r["alone"][-1] > 0.9 * r["alone"][0] for r in pairs[rule])


def test_the_released_rule_is_better_everywhere_it_was_compared() -> None:
    """Drawn evenly, from the same first member: on digits with two and four members, and on CIFAR-10."""
    runs = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"]
    even = {((r["data"], r["members"], r["seed"]), r["rule"]): r["even"][1] for r in runs}
    compared = {case for case, _ in even if (case, "printed") in even and (case, "released") in even}
    assert {case[:2] for case in compared} == {("digits", 2), ("digits", 4), ("cifar10", 2)}
    assert all(even[case, "released"] > even[case, "printed"] for case in compared)


def test_the_recipes_differ_in_the_rule_alone() -> None:
    made = {rule: recipe("digits", "barre", 2, 0, rule, None).to_json() for rule in RULES}
    for rule, fields in made.items():
        changed = {
            key for key, value in fields["sampling"].items() if value != made["printed"]["sampling"][key]
        }
        assert changed == {"printed": set(), "floor": {"floor"}, "released": {"rule"}}[rule]
        assert {**fields, "sampling": None} == {**made["printed"], "sampling": None}
