"""Scores of probabilities, from a histogram that a client may send: AUC, AP, Brier, calibration.

For each of c yes-or-no questions the samples are sorted into bins by the logit z = log(p / (1 − p))
of the predicted probability p. The edges are −12, −11.9, …, 12, and the logits of 0.1, 0.2, …, 0.9.
A bin holds four sums: samples whose answer is no, samples whose answer is yes, Σp, and Σ(p − y)².

The scores that follow from them, and how exact they are:

- *Brier score*, mean (p − y)²: exact.
- *Calibration error* (ECE) over the ten bins of p between tenths, Σ_b |Σp − Σy| / n: exact.
- *AUC*, the probability that a yes is ranked above a no, where a pair within a bin counts ½. Its
  error is at most ½ Σ_b yes_b·no_b / (yes·no), which `auc` also returns.
- *Average precision*: the middle between its values for the best and the worst order within the
  bins. `average_precision` also returns the largest possible error, ties included.
"""

from __future__ import annotations

import numpy as np

from wecfl.core.types import F64, Int

__all__ = [
    "BIN_COUNT",
    "answers",
    "auc",
    "average_precision",
    "brier",
    "calibration_error",
    "histograms",
    "probability_scores",
    "wrong_histograms",
]

LOGITS_OF_TENTHS = np.log(np.arange(1, 10) / np.arange(9, 0, -1))
"""The logits of 0.1 … 0.9."""
BIN_EDGES: F64 = np.unique(
    np.concatenate([np.round(np.arange(-120, 121) / 10, 1), LOGITS_OF_TENTHS])
)
"""The edges of the bins of the logits; a logit on an edge belongs to the bin above it."""
BIN_COUNT = len(BIN_EDGES) + 1
"""The number of bins of a histogram; the first and the last one are unbounded."""
TENTH_OF_BIN: Int = np.searchsorted(LOGITS_OF_TENTHS, np.append(-np.inf, BIN_EDGES), side="right")
"""(bins,), the tenth of p to which each bin belongs."""
ROUNDING_SLACK = 1e-9
"""The allowed error of a sum by rounding, relative to the number of its terms."""


def histograms(logits: F64, truth: F64, owners: Int, clients: int) -> F64:
    """(m, c, 4, bins), the histograms of each client; `logits` and `truth` are (n, c).

    >>> found = histograms(np.array([[2.0], [-2.0]]), np.array([[1.0], [0.0]]), np.zeros(2, int), 1)
    >>> found.shape == (1, 1, 4, BIN_COUNT), float(auc(found)[0][0, 0])
    (True, 1.0)
    """
    with np.errstate(over="ignore", invalid="ignore"):
        p = 1 / (1 + np.exp(-logits))
    bins = np.searchsorted(BIN_EDGES, logits, side="right")
    found = np.zeros((clients, logits.shape[1], 4, BIN_COUNT))
    question = np.broadcast_to(np.arange(logits.shape[1]), logits.shape)
    who = np.broadcast_to(owners[:, None], logits.shape)
    for row, values in enumerate((1 - truth, truth, p, (p - truth) ** 2)):
        np.add.at(found[:, :, row], (who, question, bins), values)
    return found


def auc(found: F64) -> tuple[F64, F64]:
    """(…,), the area under the ROC curve and its largest error; NaN if all answers are alike."""
    no, yes = found[..., 0, :], found[..., 1, :]
    below = no.cumsum(axis=-1) - no
    pairs = no.sum(axis=-1) * yes.sum(axis=-1)
    won = (yes * (below + no / 2)).sum(axis=-1)
    return _over(won, pairs), _over((yes * no).sum(axis=-1) / 2, pairs)


def average_precision(found: F64) -> tuple[F64, F64]:
    """(…,), Σ (R_k − R_{k−1})·P_k over falling thresholds, and its largest error."""
    from scipy.special import digamma  # noqa: PLC0415  (clients only count, and do not need it)

    no, yes = found[..., 0, ::-1], found[..., 1, ::-1]
    no_above, yes_above = (counts.cumsum(axis=-1) - counts for counts in (no, yes))

    def gained(wrong: F64) -> F64:
        """Σ_j (t + j) / (t + j + wrong), j = 1 … yes: the precisions at the yeses of a bin."""
        start = yes_above + wrong
        in_bins: F64 = yes - wrong * (digamma(start + yes + 1) - digamma(start + 1))
        total: F64 = in_bins.sum(axis=-1)
        return total

    middle, worst = (gained(no_above) + gained(no_above + no)) / 2, gained(no_above + no)
    # If all yeses of a bin are tied, each has the precision of the last one.
    tied = (yes * _over(yes_above + yes, yes_above + yes + no_above, 0.0)).sum(axis=-1)
    count = yes.sum(axis=-1)
    return _over(middle, count), _over(np.maximum(tied - middle, middle - worst), count)


def brier(found: F64) -> F64:
    """(…,), the mean of (p − y)²."""
    return _over(found[..., 3, :].sum(axis=-1), found[..., :2, :].sum(axis=(-2, -1)))


def calibration_error(found: F64) -> F64:
    """(…,), the mean of |mean p − share of yes| over the ten bins of p, weighted by samples."""
    gap = found[..., 2, :] - found[..., 1, :]
    tenths = np.add.reduceat(gap, np.searchsorted(TENTH_OF_BIN, np.arange(10)), axis=-1)
    return _over(np.abs(tenths).sum(axis=-1), found[..., :2, :].sum(axis=(-2, -1)))


def answers(found: F64) -> F64:
    """(…, 2, 2), counts by true and predicted answer; yes is predicted for p ≥ ½. Exact."""
    half = int(np.searchsorted(BIN_EDGES, 0.0, side="right"))
    counts = found[..., :2, :]
    return np.stack([counts[..., :half].sum(axis=-1), counts[..., half:].sum(axis=-1)], axis=-1)


def probability_scores(found: F64) -> dict[str, F64]:
    """(m,) each, from (m, c, 4, bins): the mean over the questions for which a score is defined."""
    of_questions = {
        "auc": auc(found)[0],
        "average_precision": average_precision(found)[0],
        "brier": brier(found),
        "ece": calibration_error(found),
    }
    return {
        name: _over(np.nansum(values, axis=1), (~np.isnan(values)).sum(axis=1).astype(np.float64))
        for name, values in of_questions.items()
    }


def wrong_histograms(found: F64, most: int) -> str:
    """What is wrong with the histograms (c, 4, bins) of a client with at most `most` samples.

    Empty if nothing is wrong.
    """
    counts = found[:, :2]
    if (counts < 0).any() or (counts != np.floor(counts)).any():
        return "counts must be whole numbers and not negative"
    too_many = (counts > most).any()  # single counts first, so that sums can't overflow
    samples = np.zeros(1) if too_many else counts.sum(axis=(1, 2))
    if too_many or (samples != samples[:1]).any() or (samples > most).any():
        return f"every question must have the same number of samples, and at most {most}"
    limits = counts.sum(axis=1) * (1 + ROUNDING_SLACK)
    if (found[:, 2:] < 0).any() or (found[:, 2:] > limits[:, None]).any():
        return "sums of probabilities must lie between 0 and the number of samples"
    return ""


def _over(part: F64, whole: F64, otherwise: float = np.nan) -> F64:
    """Part / whole; `otherwise` where the whole is 0."""
    share: F64 = np.divide(part, whole, out=np.full(part.shape, otherwise), where=whole > 0)
    return share
