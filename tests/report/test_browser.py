"""The page in a real browser: what it shows equals what the library computes, by mouse and by keyboard."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.report.made_runs import chosen_evaluation, chosen_run

from randens.evaluation import Evaluation
from randens.report import read_landscape, write_explorer, write_report
from randens.report.explorer import EXAMPLES, conflicting_profile, parse_configurations
from randens.risk import RiskProfile, candidates, optimal_sampling

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@contextmanager
def opened(
    browser: Browser, path: Path, width: int = 1280, expected: int = 0, **options: Any
) -> Iterator[Page]:
    """The page at `path`; leaving fails on any error on the console, exception or request beyond the file.

    expected: how many complaints of the page's policy about foreign scripts there must be.
    """
    complaints: list[str] = []
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    page = context.new_page()
    page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda r: (
            None if r.url.startswith(("data:", path.as_uri())) else complaints.append(f"request {r.url}")
        ),
    )
    page.goto(path.as_uri())
    yield page
    context.close()
    refused = [c for c in complaints if "Content Security Policy" in c]
    assert len(refused) == expected
    assert [c for c in complaints if c not in refused] == []


def agree(page: Page, profile: RiskProfile) -> np.ndarray[Any, Any]:
    """Check every number beside the landscape against the library, to 1e-9; returns α."""
    shown = page.evaluate(
        """() => { const root = document.querySelector(".landscape");
        const read = (o) => [Number(o.dataset.value), o.textContent];
        return { probs: JSON.parse(root.dataset.probs),
          numbers: Object.fromEntries(
            [...root.querySelectorAll("output[data-key]")].map((o) => [o.dataset.key, read(o)])),
          shares: [...root.querySelectorAll("output[data-share]")].map(read) }; }"""
    )
    alpha = np.array(shown["probs"])
    expected = read_landscape(profile, alpha)
    numbers = {
        "risk": expected.risk,
        "accuracy": 1 - expected.risk,
        "gain": expected.gain,
        "floor": expected.floor,
        "lowest": expected.lowest_floor,
    }
    assert shown["numbers"].keys() == numbers.keys()
    for key, value in numbers.items():
        exact, words = shown["numbers"][key]
        assert exact == pytest.approx(value, abs=1e-9), key
        assert float(words) == pytest.approx(value, abs=6e-5), key
    assert [exact for exact, _ in shown["shares"]] == pytest.approx(expected.shares.tolist(), abs=1e-9)
    assert [float(words) for _, words in shown["shares"]] == pytest.approx(expected.shares.tolist(), abs=6e-5)
    return alpha


def drag(page: Page, across: float, down: float) -> None:
    """Drag the point to a place in the plot, given in shares of its width and height."""
    plot = page.locator(".landscape svg.chart").first
    plot.evaluate("(element) => element.scrollIntoView({ block: 'center', behavior: 'instant' })")
    box = plot.bounding_box()
    knob = page.locator(".landscape .knob").first.bounding_box()
    assert box is not None
    assert knob is not None
    page.mouse.move(knob["x"] + knob["width"] / 2, knob["y"] + knob["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"], steps=3)
    page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"], steps=3)
    page.mouse.up()


def made(tmp_path: Path, result: Evaluation) -> Path:
    return write_report([chosen_run(tmp_path / "run", result, epochs=8)])


@pytest.mark.parametrize("members", [2, 3, 5])
def test_dragging_gives_the_library_s_numbers(browser: Browser, tmp_path: Path, members: int) -> None:
    result = chosen_evaluation(members, n=80)
    with opened(browser, made(tmp_path, result)) as page:
        seen = [agree(page, result.profile)]
        assert seen[0] == pytest.approx(result.probs)
        for across, down in ((0.3, 0.75), (0.62, 0.6), (0.5, 0.35), (0.02, 0.99)):
            drag(page, across, down)
            seen.append(agree(page, result.profile))
        assert len({tuple(alpha.round(6)) for alpha in seen}) == len(seen)


@pytest.mark.parametrize("members", [2, 4, 64])
def test_sliders_buttons_and_typing(browser: Browser, tmp_path: Path, members: int) -> None:
    result = chosen_evaluation(members, n=40, sets_per_input=2, share=0.25)
    rng = np.random.default_rng(members)
    with opened(browser, made(tmp_path, result)) as page:
        slider = page.get_by_label("probability of member 1", exact=True)
        slider.fill("0.7")
        alpha = agree(page, result.profile)
        assert alpha[1] == pytest.approx(0.7)
        assert alpha.sum() == pytest.approx(1)
        page.get_by_role("button", name="uniform").click()
        assert agree(page, result.profile) == pytest.approx(np.full(members, 1 / members))
        typed = rng.dirichlet(np.ones(members))
        field = page.get_by_label("probabilities α")
        field.fill(", ".join(repr(float(p)) for p in typed))
        page.get_by_role("button", name="set α").click()
        assert agree(page, result.profile) == pytest.approx(typed, abs=1e-12)
        for wrong, said in (
            ("1", "give"),
            (", ".join(["1"] * members), "sum to"),
            (", ".join(["x"] * members), "numbers"),
        ):
            field.fill(wrong)
            page.get_by_role("button", name="set α").click()
            assert said in (page.locator(".complaint").text_content() or "")
            assert agree(page, result.profile) == pytest.approx(typed, abs=1e-12)


def test_the_optimum_and_its_certificate(browser: Browser, tmp_path: Path) -> None:
    result = chosen_evaluation(4, n=300, probs=[0.7, 0.1, 0.1, 0.1])
    best = optimal_sampling(result.profile, method="exact", clean_risks=result.clean.mean(axis=0))
    with opened(browser, made(tmp_path, result)) as page:
        note = page.locator(".certificate")
        assert note.get_attribute("data-sound") == "true"
        assert float(note.get_attribute("data-bound") or "nan") == pytest.approx(best.lower_bound, abs=1e-12)
        page.get_by_role("button", name="optimum").click()
        assert agree(page, result.profile) == pytest.approx(best.probs, abs=1e-12)
        # The page adds the certificate up itself: an altered one is noticed.
        assert (
            page.evaluate(
                """() => { const l = landscapes[0]; const o = {...l.optimum, mass: l.optimum.mass.map((m) => 1.01 * m)};
            return checkCertificate(l.profile, o).sound; }"""
            )
            is False
        )


def test_candidates_are_reached_exactly(browser: Browser, tmp_path: Path) -> None:
    result = chosen_evaluation(3)
    with opened(browser, made(tmp_path, result)) as page:
        assert page.locator(".triangle .candidate").count() == 10
        page.get_by_label("go to one of the ten candidates").select_option(label=None, index=7)
        assert (
            agree(page, result.profile).tolist() == [float(p) for p in candidates(3)[6]] == [0.5, 0.25, 0.25]
        )
        page.locator(".triangle .candidate").nth(3).click()
        assert sorted(agree(page, result.profile).tolist()) == [0.0, 0.5, 0.5]


def test_the_keyboard_alone_is_enough(browser: Browser, tmp_path: Path) -> None:
    result = chosen_evaluation(3, probs=[0.5, 0.3, 0.2])
    with opened(browser, made(tmp_path, result)) as page:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.classList.contains('handle')"):
                break
        else:
            pytest.fail("the point cannot be reached with the Tab key")
        for key, expected in (
            ("ArrowUp", [0.51, 0.295, 0.195]),
            ("ArrowLeft", [0.51, 0.305, 0.185]),
            ("Shift+ArrowDown", [0.41, 0.355, 0.235]),
            ("Shift+ArrowRight", [0.41, 0.255, 0.335]),
            ("Home", [1 / 3, 1 / 3, 1 / 3]),
        ):
            page.keyboard.press(key)
            assert agree(page, result.profile) == pytest.approx(expected, abs=1e-12)
        said = page.locator(".handle").get_attribute("aria-valuetext") or ""
        assert said.startswith("α (0.333, 0.333, 0.333), risk ")
        page.keyboard.press("End")
        agree(page, result.profile)
        page.get_by_label("probability of member 2", exact=True).focus()
        page.keyboard.press("End")
        assert agree(page, result.profile).tolist() == [0, 0, 1]


def test_faces_of_more_members(browser: Browser, tmp_path: Path) -> None:
    result = chosen_evaluation(5, n=150)
    with opened(browser, made(tmp_path, result)) as page:
        assert page.locator(".faces .face").count() == 10
        face = page.get_by_role("button", name="face of members 1, 3, 4")
        part = result.profile.restrict((1, 3, 4))
        best = optimal_sampling(part, method="candidates")
        assert f"risk from {best.risk:.4f}" in (face.get_attribute("aria-label") or "")
        face.click()
        assert face.get_attribute("aria-pressed") == "true"
        drag(page, 0.5, 0.6)
        alpha = agree(page, result.profile)
        assert alpha[[0, 2]].tolist() == [0, 0]
        assert (alpha[[1, 3, 4]] > 0).all()
        # The face's own look-up and the whole profile are the same function.
        three = alpha[[1, 3, 4]].tolist()
        got = page.evaluate("(p) => faceRisk(faceProfile(landscapes[0].profile, [1, 3, 4]), ...p)", three)
        assert got == pytest.approx(part.risk(three), abs=1e-12)


def test_hostile_names_do_nothing(browser: Browser, trained_run: Path) -> None:
    path = write_report([trained_run])
    with opened(browser, path, expected=1) as page:
        page.on("dialog", lambda dialog: pytest.fail(f"a script from data ran: {dialog.message}"))
        assert page.title() == "randens report: trained"
        assert page.locator("img[src=x]").count() == 0
        assert "onerror=alert" in (page.locator(".gallery").text_content() or "")
        # Every picture is really there.
        widths = page.evaluate("[...document.querySelectorAll('.gallery img')].map((i) => i.naturalWidth)")
        assert set(widths) == {8}
        agree(page, Evaluation.load(trained_run / "evaluation.json").profile)
        # The policy refuses what a hole in the escaping would let in.
        blocked = page.evaluate(
            """() => { const s = document.createElement("script"); s.textContent = "window.owned = 1";
            document.body.append(s); return window.owned === undefined; }"""
        )
        assert blocked


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark"), (320, "light")])
def test_fits_the_screen(browser: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    runs = [
        chosen_run(tmp_path / name, chosen_evaluation(members, n=60), epochs=8)
        for name, members in (("three", 3), ("single", 1), ("many", 30))
    ]
    with opened(browser, write_report(runs), width, color_scheme=scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(18, 23, 28)")
        page.screenshot(path=tmp_path / f"{width}.png", full_page=True)
        assert (tmp_path / f"{width}.png").stat().st_size > 20_000


@pytest.mark.parametrize(("width", "columns"), [(1400, 2), (1200, 2), (1199, 1), (800, 1)])
def test_wide_screens_have_two_columns(browser: Browser, tmp_path: Path, width: int, columns: int) -> None:
    with opened(browser, made(tmp_path, chosen_evaluation(3)), width) as page:
        first, second = (
            page.locator(f"section[aria-labelledby={name}]") for name in ("results", "efficiency")
        )
        one, two = first.bounding_box(), second.bounding_box()
        assert one is not None
        assert two is not None
        assert (one["y"] == pytest.approx(two["y"])) is (columns == 2)
        assert (two["x"] > one["x"] + one["width"]) is (columns == 2)
        whole = page.locator("section[aria-labelledby=landscape-0]").bounding_box()
        assert whole is not None
        assert whole["width"] > 0.9 * width


def test_a_table_that_scrolls_says_so(browser: Browser, tmp_path: Path) -> None:
    hint = """(table) => getComputedStyle(table, "::before").content"""
    with opened(browser, made(tmp_path, chosen_evaluation(3)), 320) as page:
        table = page.locator("section[aria-labelledby=results] .table")
        region = table.locator(".scroll")
        assert "scroll" in table.evaluate(hint)
        region.evaluate("(e) => { e.scrollLeft = e.scrollWidth; }")
        page.wait_for_function(
            "() => !document.querySelector('#results ~ .table .scroll').classList.contains('more')"
        )
        assert "scroll" not in table.evaluate(hint)
        # The keyboard scrolls it, too.
        region.focus()
        assert page.evaluate("document.activeElement.classList.contains('scroll')")
    with opened(browser, made(tmp_path / "wide", chosen_evaluation(3)), 1400) as page:
        assert "scroll" not in page.locator("section[aria-labelledby=results] .table").evaluate(hint)


def test_text_has_contrast_and_pictures_have_words(browser: Browser, trained_run: Path) -> None:
    for scheme in ("light", "dark"):
        with opened(browser, write_report([trained_run]), color_scheme=scheme) as page:
            worst = page.evaluate(_CONTRAST)
            assert worst["ratio"] >= 4.5, worst
            assert page.locator("img:not([alt])").count() == 0
            assert page.locator("svg[role=img]:not([aria-label])").count() == 0
            unnamed = page.evaluate(
                """[...document.querySelectorAll('input, select, textarea, button')].filter((e) =>
                !(e.labels && e.labels.length) && !e.getAttribute('aria-label') && !e.textContent.trim()).length"""
            )
            assert unnamed == 0
            levels = page.evaluate(
                "[...document.querySelectorAll('h1,h2,h3,h4')].map((h) => Number(h.tagName[1]))"
            )
            assert levels[0] == 1
            assert all(after - before <= 2 for before, after in itertools.pairwise(levels))


def test_prints(browser: Browser, trained_run: Path, tmp_path: Path) -> None:
    with opened(browser, write_report([trained_run], tmp_path / "p.html"), color_scheme="dark") as page:
        content = page.pdf(path=tmp_path / "p.pdf")
        assert content.startswith(b"%PDF")
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not page.locator("nav.contents").is_visible()
        # Paper has nothing to unfold and nothing to scroll.
        assert page.locator("details table").first.is_visible()
        assert page.locator(".scroll").first.evaluate("(e) => getComputedStyle(e).overflowX") == "visible"
        assert page.locator("main").evaluate("(e) => getComputedStyle(e).display") == "block"


def test_ten_thousand_points_make_a_small_page(browser: Browser, tmp_path: Path) -> None:
    path = made(tmp_path, chosen_evaluation(5, n=10_000))
    assert path.stat().st_size < 600_000
    with opened(browser, path) as page:
        assert page.locator("[data-landscape]").first.is_visible()


@pytest.mark.slow
def test_ten_thousand_points_open_within_two_seconds(browser: Browser, tmp_path: Path) -> None:
    """The browser's own clock from the start of the navigation to the end of all scripts; the best of three.

    Left out by default: on a machine with other work it says nothing about the page.
    """
    path = made(tmp_path, chosen_evaluation(16, n=10_000))
    assert path.stat().st_size < 6_000_000
    times = []
    for _ in range(3):
        with opened(browser, path) as page:
            entry = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
            times.append(entry / 1000)
    assert min(times) < 2.0, times


def test_the_teaching_page_by_risks(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, write_explorer(tmp_path / "e.html", member_risks=[0.42, 0.45, 0.5])) as page:
        profile = conflicting_profile([0.42, 0.45, 0.5])
        agree(page, profile)
        assert "Drawing 3 members helps" in (page.locator("#said").text_content() or "")
        page.locator("#conflict").fill("0.35")
        agree(page, conflicting_profile([0.42, 0.45, 0.5], 0.35))
        page.locator("#conflict").fill("0")
        agree(page, conflicting_profile([0.42, 0.45, 0.5], 0.0))
        assert "Drawing does not help" in (page.locator("#said").text_content() or "")
        page.locator("#risks").fill("0.2 0.45")
        page.locator("#conflict").fill("1")
        agree(page, conflicting_profile([0.2, 0.45]))
        assert "member 0 alone" in (page.locator("#said").text_content() or "")
        for text, said in (
            ("0.2 1.5", '"1.5" is not a risk'),
            ("", "Give the members"),
            ("0.1 " * 9, "at most 8"),
        ):
            page.locator("#risks").fill(text)
            assert said in (page.locator("#complaint").text_content() or "")


@pytest.mark.parametrize("seed", range(4))
def test_the_teaching_page_finds_the_optimum(browser: Browser, tmp_path: Path, seed: int) -> None:
    """Its simplex method against the library's cutting planes, on random configurations."""
    rng = np.random.default_rng(seed)
    members = (2, 3, 5, 7)[seed]
    weights = rng.dirichlet(np.ones(12))
    lines = [
        f"{weight!r}: "
        + " ".join("".join(rng.choice(["0", "1"], members)) for _ in range(rng.integers(1, 5)))
        for weight in weights.tolist()
    ]
    profile = parse_configurations(lines)
    best = optimal_sampling(profile, method="exact")
    with opened(browser, write_explorer(tmp_path / "e.html", configurations=lines)) as page:
        agree(page, profile)
        note = page.locator(".certificate")
        assert note.get_attribute("data-sound") == "true"
        assert float(note.get_attribute("data-bound") or "nan") == pytest.approx(best.risk, abs=1e-9)
        page.get_by_role("button", name="optimum", exact=True).click()
        alpha = agree(page, profile)
        assert profile.risk(alpha) == pytest.approx(best.risk, abs=1e-9)


def test_the_teaching_page_by_configurations(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, write_explorer(tmp_path / "e.html"), 390) as page:
        page.get_by_label("configurations: which sets").check()
        for name, text in EXAMPLES.items():
            page.get_by_role("button", name=name, exact=True).click()
            agree(page, parse_configurations(text.split("\n")))
            assert page.locator("#complaint").text_content() == ""
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for text, said in (
            ("0.5: 10 01", "sum to 0.5"),
            ("1: 10 011", "where there are 2"),
            ("1: ab", "zeros and ones"),
            ("1 10", "a weight, a colon and sets"),
            ("2: 10", "a number from 0 to 1"),
            ("1:", "empty of sets"),
            ("", "at least one line"),
        ):
            page.locator("#configurations").fill(text)
            assert said in (page.locator("#complaint").text_content() or "")
        page.locator("#configurations").fill("1: <img/src=x/onerror=alert(1)>")
        assert page.locator("img[src='x']").count() == 0


# The smallest ratio of text to ground by the formula of WCAG 2, over visible text with a plain ground.
_CONTRAST = """() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  let worst = { ratio: 99 };
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !element.getClientRects().length || element.closest("script, .unseen, .skip, option")) continue;
    const style = getComputedStyle(element);
    const text = parse(element instanceof SVGElement ? style.fill : style.color);
    let ground = [255, 255, 255];
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) { ground = colour; break; }
    }
    const [a, b] = [light(text), light(ground)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < worst.ratio) worst = { ratio, text: element.textContent.slice(0, 40), colour: style.color };
  }
  return worst;
}"""
