"""One line of the result: what was tried, what was measured, and its bound."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """`figure` in `unit` of an attack on `part`; it holds if the figure is within `bound` (≤, or ≥ if `least`)."""

    part: str
    attack: str
    figure: float
    unit: str
    bound: float
    least: bool = False
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.figure >= self.bound if self.least else self.figure <= self.bound

    @property
    def row(self) -> str:
        """A row of a Markdown table."""
        sign = "≥" if self.least else "≤"
        verdict = "yes" if self.holds else "**no**"
        figures = f"{self.figure:,.4g} {self.unit} | {sign} {self.bound:,.4g}"
        return f"| {self.part} | {self.attack} | {figures} | {verdict} | {self.note} |"
