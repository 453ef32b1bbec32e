"""Is the paper's Table 2 a mixture of its client-wise and its cluster-wise runs?

If a share p of the runs behind a cell were cluster-wise ones (mean V, as in the paper's Table 1)
and the others client-wise (mean C, as measured here), the cell would have

    the mean  P = p·V + (1 − p)·C,   and by mixing alone the spread  √(p·(1 − p))·|V − C|.

The mean gives p. The spread is then a forecast, which the paper's ± can refute.

    python benchmarks/table2_mixture.py     # from docs/results/table2.csv; writes table2-mixture.md
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from wecfl.paper.tables.beside_paper import SCORES, published

RESULTS = Path(__file__).parents[1] / "docs" / "results"
CLUSTERED = ("wecfl", "fesem")
"""The paper's IFCA is not IFCA, and FedAvg has nearly the same figures in both tables."""


def mixtures(ours: pd.DataFrame) -> pd.DataFrame:
    """For each cell that was run, and each score: p, the spread by mixing, and the paper's ±.

    >>> table = published("table2").reset_index().assign(n=1)
    >>> cells = table[(table.method == "wecfl") & (table.dataset == "cifar-10") & (table.k == 10)]
    >>> mixtures(cells.assign(accuracy=60.0))[["cell", "share"]].round(2).values.tolist()[0]
    ['cifar-10, dirichlet, wecfl, K = 10', 0.86]
    """
    cluster_wise, client_wise = published("table1"), published("table2")
    rows = []
    for row in ours[ours["method"].isin(CLUSTERED) & (ours["n"] > 0)].to_dict("records"):
        dataset, partition, k, method = (
            row[key] for key in ("dataset", "partition", "k", "method")
        )
        kind = partition.removeprefix("clientwise-")
        theirs = client_wise.loc[(dataset, partition, k, method)]
        apart = cluster_wise.loc[(dataset, f"clusterwise-{kind}", k, method)]
        for name, head in SCORES.items():
            gap = apart[name] - row[name]
            share = (theirs[name] - row[name]) / gap
            rows.append(
                {
                    "cell": f"{dataset}, {kind}, {method}, K = {k}", "score": head,
                    "ours": row[name], "cluster_wise": apart[name], "paper": theirs[name],
                    "share": share, "spread": (max(share * (1 - share), 0.0)) ** 0.5 * abs(gap),
                    "paper_spread": theirs[f"{name}_std"],
                    "cluster_wise_spread": apart[f"{name}_std"],
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def markdown(found: pd.DataFrame) -> str:
    """The table as a page."""
    lines = [
        "# Table 2 as a mixture", "",
        "Made by `python benchmarks/table2_mixture.py` from `table2.csv`. C is our client-wise",
        "figure, V the paper's cluster-wise one, P the paper's client-wise one. p is the share of",
        "cluster-wise runs that makes C and V into P.", "",
        "| cell | score | C | V | P | p | spread by mixing | ± of P | ± of V |", "|" + "---|" * 9,
    ]  # fmt: skip
    lines += [
        f"| {row.cell} | {row.score} | {row.ours:.1f} | {row.cluster_wise:.1f} | {row.paper:.1f} "
        f"| {row.share:.2f} | {row.spread:.1f} | {row.paper_spread:.1f} "
        f"| {row.cluster_wise_spread:.1f} |"
        for row in found.itertuples()
    ]
    return "\n".join(lines) + "\n"


def told(found: pd.DataFrame) -> str:
    """What the page about it says of the macro-F1, which differs most between the two tables."""
    f1 = found[found["score"] == SCORES["macro_f1"]]
    low, high = f1["share"].min(), f1["share"].max()
    linked = f1["spread"].corr(f1["paper_spread"])
    return (
        f"Over the {len(f1)} cells that were run, p lies between {low:.2f} and {high:.2f}, with a "
        f"median of {f1['share'].median():.2f}. The spread by mixing is {f1['spread'].mean():.1f} "
        f"on average, the paper's ± {f1['paper_spread'].mean():.1f}, and their correlation is "
        f"{linked:.2f}. The ± of the same methods in the paper's Table 1 is "
        f"{f1['cluster_wise_spread'].mean():.1f} on average."
    )


def main() -> None:
    """Write the table."""
    found = mixtures(pd.read_csv(RESULTS / "table2.csv"))
    (RESULTS / "table2-mixture.md").write_text(markdown(found), encoding="utf-8")
    print(markdown(found))
    print(told(found))


if __name__ == "__main__":
    main()
