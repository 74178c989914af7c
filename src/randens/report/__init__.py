"""One self-contained page about one run or several; the teaching page; figures for papers."""

from randens.report.figures import FIGURES, write_figure
from randens.report.page import write_explorer, write_report

__all__ = ["FIGURES", "write_explorer", "write_figure", "write_report"]
