"""What was run, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from wecfl.base import Int

__all__ = ["client_words", "partition_words"]


def partition_words(config: Mapping[str, Any]) -> str:
    """The partition of a configuration with its parameters.

    >>> partition_words({"partition": "clusterwise-dirichlet", "alpha": (0.1, 10.0)})
    'clusterwise-dirichlet(0.1, 10)'
    """
    numbers = config.get("alpha") or config.get("classes_per") or ()
    return f"{config['partition']}({', '.join(f'{n:g}' for n in numbers)})"


def client_words(sizes: Int, groups: Int | None) -> str:
    """Clients and their data, from |D_i| (m,) and the generating groups (m,) if known.

    >>> client_words(np.array([10, 30]), np.array([0, 1]))
    '2 clients in 2 groups, 20 ± 10 training samples'
    """
    hidden = "" if groups is None else f" in {len(np.unique(groups))} groups"
    samples = f"{sizes.mean():.0f} ± {sizes.std():.0f} training samples"
    return f"{len(sizes)} clients{hidden}, {samples}"
