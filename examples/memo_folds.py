"""A random forest for each of three folds, trained once and loaded from then on, whatever process asks.

    python examples/memo_folds.py [TREES]     trains; once more: loads
    stager why memo memo_folds.train          says why each forest was trained

Change DEPTH, or a line of `best_split`, and run it again. The forest is NumPy's, a slower stand-in for
scikit-learn's. With scikit-learn, say `@memo(pickle=True)` and return the RandomForestClassifier.
"""

import sys
import time
from pathlib import Path

import numpy as np

from stager_client.memo import memo

DEPTH = 5
TRIED = 4  # columns that a split chooses from
Arrays = dict[str, np.ndarray]


def make_table(path: Path) -> Path:
    """A table as a clinic has it: a fold, a class that follows from some columns, and noise."""
    values = np.random.default_rng(0).normal(size=(2700, 12))
    label = (values[:, 0] + values[:, 1] * values[:, 2] > 0) * 2 + (values[:, 3] > 0.5)
    np.savetxt(path, np.column_stack([np.arange(2700) % 3 + 1, label, values]), "%.6g", delimiter=",")
    return path


def best_split(x: np.ndarray, y: np.ndarray) -> tuple[int, float]:
    """The column and the threshold that leave the purest halves, by Gini."""
    order = np.argsort(x, axis=0, kind="stable")
    left = np.cumsum(np.eye(4)[y[order]], axis=0)[:-1]
    right = np.bincount(y, minlength=4) - left
    purity = (left**2).sum(2) / left.sum(2) + (right**2).sum(2) / right.sum(2)
    row, column = np.unravel_index(np.argmax(purity), purity.shape)
    return int(column), float(x[order[row : row + 2, column], column].mean())


@memo
def train(table: Path, trees: int, without: int) -> Arrays:
    """A forest of all rows but those of a fold: the splits of each tree, and the votes of its leaves."""
    data = np.array([row for row in np.loadtxt(table, delimiter=",") if row[0] != without])
    x, y, splits = data[:, 2:], data[:, 1].astype(int), 2**DEPTH - 1
    column, threshold = np.zeros((trees, splits), int), np.full((trees, splits), np.inf)
    votes = np.zeros((trees, splits + 1, 4))
    for tree in range(trees):
        rng = np.random.default_rng([without, tree])
        rows_of = {0: rng.integers(0, len(x), len(x))}
        for node in range(splits):
            rows, tried = rows_of[node], rng.choice(x.shape[1], TRIED, replace=False)
            if len(np.unique(y[rows])) > 1:
                best, threshold[tree, node] = best_split(x[rows][:, tried], y[rows])
                column[tree, node] = tried[best]
            above = x[rows, column[tree, node]] > threshold[tree, node]
            rows_of |= {2 * node + 1: rows[~above], 2 * node + 2: rows[above]}
        votes[tree] = [np.bincount(y[rows_of[splits + leaf]], minlength=4) for leaf in range(splits + 1)]
    return {"column": column, "threshold": threshold, "votes": votes}


def accuracy(forest: Arrays, data: np.ndarray) -> float:
    votes = np.zeros((len(data), 4))
    for column, threshold, leaves in zip(forest["column"], forest["threshold"], forest["votes"], strict=True):
        node = np.zeros(len(data), int)
        for _ in range(DEPTH):
            node = 2 * node + 1 + (data[np.arange(len(data)), 2 + column[node]] > threshold[node])
        votes += leaves[node - len(column)]
    return float((np.argmax(votes, axis=1) == data[:, 1]).mean())


if __name__ == "__main__":
    table, trees = make_table(Path("memo_folds.csv")), int([*sys.argv, "100"][1])
    for fold in (1, 2, 3):
        began = time.monotonic()
        forest = train(table, trees, without=fold)
        data = np.loadtxt(table, delimiter=",")
        right, took_s = accuracy(forest, data[data[:, 0] == fold]), time.monotonic() - began
        print(f"fold {fold}: accuracy {right:.2f}, in {took_s:.2f} s; {train.counts}")
