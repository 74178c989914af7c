"""Randomized ensembles of classifiers: attack them, prove what they can and cannot do, train them, ship them."""
