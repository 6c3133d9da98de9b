"""Rows of a table with many columns, few enough to run, that still meet every combination of values
of any `strength` columns."""

import itertools


def whole_table(axes):
    """Every row: axes is {column: values}, a row {column: value}."""
    return [dict(zip(axes, values)) for values in itertools.product(*axes.values())]


def combinations_of(row, strength):
    return {frozenset(part) for part in itertools.combinations(sorted(row.items()), strength)}


def covering_rows(axes, strength):
    """Greedy: the row that meets most combinations not met before, until none is left."""
    candidates = {tuple(row.items()): combinations_of(row, strength)
                  for row in whole_table(axes)}
    missing = set().union(*candidates.values())
    chosen = []
    while missing:
        best = max(candidates, key=lambda row: len(candidates[row] & missing))
        missing -= candidates.pop(best)
        chosen.append(dict(best))
    return chosen
