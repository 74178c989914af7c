"""When does drawing one of M members pay? A map of the gain, and the methods that are meant to create it.

    python -m paper.when_does_drawing_pay            # whatever is missing: train, judge; then the page
    python -m paper.when_does_drawing_pay page       # the page and its figures from the saved results alone

Every cell of the plan is one file in `results/`; a cell that has its file is not computed again, and training that
was interrupted continues where it was.
"""
