"""Which keys of a configuration belong together, and the paper's partitions."""

from __future__ import annotations

from typing import Any

__all__ = [
    "KEY_OF_OPTION",
    "METHOD_OPTIONS",
    "PAPER_PARTITIONS",
    "PARTITION_KEYS",
    "WORLD_KEYS",
    "is_own",
]

METHOD_OPTIONS = {
    "clusters": "k", "criterion": "criterion", "warm_start": "warm", "eps1": "eps1",
    "eps2": "eps2", "cluster_round": "round", "threshold": "threshold", "linkage": "linkage",
    "metric": "metric", "mu": "mu", "loss_batches": "batches",
}  # fmt: skip
"""Choices that are options of some methods, and the names that the methods give them. They apply to
the methods that have the option. Other options of a method are in `options`."""

KEY_OF_OPTION = {option: key for key, option in METHOD_OPTIONS.items()}
"""The key of the configuration for an option of a method."""

PARTITION_KEYS = ("partition", "alpha", "classes_per", "clients", "groups", "test_set", "copies")
"""Choices about the partition of a data set. They do not apply to a folder of clients, nor to a
table that says which client a row belongs to."""

WORLD_KEYS = ("transform", "mixture", "drift")
"""Choices about how the clients' samples are changed."""

PAPER_PARTITIONS: dict[str, dict[str, Any]] = {
    "clientwise-dirichlet": {"alpha": (0.1,)},
    "clientwise-nclass": {"classes_per": (2,)},
    "clusterwise-dirichlet": {"alpha": (0.1, 10.0)},
    "clusterwise-nclass": {"classes_per": (3, 2)},
}
"""The paper's parameters of its four partitions, used where none are given."""


def is_own(name: str) -> bool:
    """Whether the name of a model or a data set means code of the user's own, FILE.py:NAME.

    >>> is_own("nets.py:Net"), is_own("mlp")
    (True, False)
    """
    return ".py:" in name
