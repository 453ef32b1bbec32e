"""The result of a run on a fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import pandas as pd

from wecfl import metrics
from wecfl.core.state import State
from wecfl.core.types import Bool, Int
from wecfl.errors import ConfigError
from wecfl.models import Module, fill
from wecfl.runs.member_reference import Reference
from wecfl.runs.result import Result
from wecfl.runs.scores import headline_of

__all__ = ["FleetResult", "no_reference"]


@final
@dataclass(frozen=True, eq=False)
class FleetResult(Result):
    """A `Result` whose `federation` are the clients that were heard.

    The records, and the means of them in `summary`, are about the clients that took part in the
    round. `clients` and `agreement` are about all that were heard so far.
    """

    @property
    def heard(self) -> Bool:
        """(m,), the registered clients that were heard so far."""
        return np.asarray(self.states[0].known["met"])

    @property
    def labels(self) -> Int:
        """(m,), the cluster of each registered client; −1: it was never heard."""
        return np.where(self.heard, self.states[0].labels, -1)

    @property
    def clients(self) -> pd.DataFrame:
        """One row for each client that was heard: its number, its data and its cluster."""
        fed, heard = self.federation, np.flatnonzero(self.heard)
        return pd.DataFrame(
            {
                "client": fed.names,
                "samples": fed.sizes,
                "group": fed.groups,
                "cluster": self.states[0].labels[heard],
                "number": heard,
            }
        )

    def agreement(self) -> dict[str, float | None]:
        """ARI and NMI of the assignment and the hidden groups, over the clients that were heard."""
        return metrics.agreement(self.states[0].labels[self.heard], self.federation.groups)

    def __repr__(self) -> str:
        """One line: what was trained, and the result."""
        name, kind = headline_of(summary := self.summary)
        scored = f", {kind.label} {kind.text(summary[name])}" if summary[name] is not None else ""
        about = summary["fleet"]
        return (
            f"FleetResult({self.method.name}: {about['heard']:,} of {about['registered']:,} "
            f"clients heard, in {about['clusters']} clusters after {len(self.records)} rounds"
            f"{scored}, {self.status})"
        )

    @property
    def _extras(self) -> dict[str, Any]:
        found = self.states[0].labels[self.heard]
        about = {
            "registered": len(self.heard),
            "heard": len(found),
            "clusters": len(np.unique(found)),
            **self.agreement(),
        }
        return {**super()._extras, "fleet": about}

    def _built(self, kind: Literal["client", "cluster"], number: int) -> Module:
        state = self.states[0]
        if kind == "client" and self.method.serve.needs_memory:
            raise ConfigError(
                f"clients of {self.method.name} keep their own models, which the server does not "
                f"have: ask for the model of a cluster, model(cluster=…)"
            )
        row = state.sent_to(number) if kind == "client" else state.centers[number]
        return fill(self.architecture, row)

    def _number(self, client: str) -> int:
        return int(np.flatnonzero(self.heard)[super()._number(client)])


def no_reference(state: State) -> Reference:
    """Refuse to compare newcomers: a registered client finds its cluster when it takes part."""
    raise ConfigError(
        "newcomers can't be assigned to a fleet: register the client, and it joins the nearest "
        "cluster when it takes part"
    )
