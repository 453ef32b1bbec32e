"""Whether the assumptions of the lemmas are met, not met or unknown, as a run folder shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wecfl.config.resolve import resolve
from wecfl.errors import RunFolderError
from wecfl.folder.readers import read_metrics, read_summary, tensor_names
from wecfl.method_from_config import method_of
from wecfl.methods import components, structure
from wecfl.models import MODELS
from wecfl.runs.record import Record
from wecfl.tasks.choice import TASKS
from wecfl.theory.verdicts import Assumption

__all__ = ["RunEvidence", "assumptions"]


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """What a run folder shows about the lemmas and their assumptions."""

    title: str
    records: list[Record]
    model: str
    task: str
    """The name and the options of the task."""
    steps: int
    """Q, the number of local steps in a round."""
    plan: dict[str, Any]
    components: dict[str, str]
    """The components of the method in words (`wecfl.methods.components`)."""
    structure: dict[str, Any] | None
    """The components as values (`wecfl.methods.structure`); None if they were not recorded."""
    tensors: list[str]
    """The names of the model's tensors."""
    fleet: bool
    """Whether it is a fleet: each round has other clients, and F is that of these clients."""

    @classmethod
    def read(cls, folder: Path) -> RunEvidence:
        """Read a run folder that holds at least one complete round."""
        summary, records = read_summary(folder), read_metrics(folder)
        config = summary["config"]
        if "components" in config:  # made from Python values: the folder describes the method
            plan, words, values = config["plan"], config["components"], config.get("structure")
        else:
            chosen = resolve(folder / "config.toml")
            method = method_of(chosen)
            plan, words, values = chosen.model_dump(), components(method), structure(method)
        if not records:
            raise RunFolderError(
                f"nothing to check: {folder} holds no complete round; resume the run"
            )
        return cls(
            title=f"{summary['method']}, K = {summary['k']}, {len(records)} rounds, "
            f"seed {summary['seed']}",
            records=records,
            model=config.get("model", ""),
            task=config.get("task", "classification"),
            steps=plan["steps"],
            plan=plan,
            components=words,
            structure=values,
            tensors=tensor_names(folder),
            fleet="registered" in config,
        )

    @property
    def outside(self) -> str:
        """The components in which the method differs from the paper's; empty if there are none.

        The theory is about one model per cluster (`members`), the squared distance and the steps
        L, E, M, D.
        """
        covered = {"distance": "squared_euclidean", "steps": "L E M D", "members": "1"}
        early = {"steps": "L E M D" if self.components.get("order") == "EMDL" else "others"}
        own = early | self.components
        return ", ".join(f"{key} {own[key]}" for key, v in covered.items() if own[key] != v)

    @property
    def is_known_model(self) -> bool:
        """Whether the model is one of `wecfl.models`, whose layers are known."""
        return self.model in (*MODELS, "auto")

    @property
    def measured(self) -> list[Record]:
        """The records with what the theory needs (`--diagnostics`)."""
        return [record for record in self.records if "theory" in record]

    def rate(self, record: Record) -> float | None:
        """η in a round; None if clients had different ones."""
        rates = set(record["clients"]["lr"])
        return rates.pop() if len(rates) == 1 else None


def assumptions(run: RunEvidence) -> Iterator[Assumption]:
    """Every assumption that a lemma or theorem rests on, and why it is met or not."""
    yield _warm_start(run)
    yield _one_importance(run)
    yield _plain_steps(run)
    yield _one_loss(run)
    yield _convex(run)
    yield _smooth(run)
    yield _whole_data(run)


def _warm_start(run: RunEvidence) -> Assumption:
    """E starts from the previous centers, so that it can't raise F."""
    met = None if run.structure is None else _keeps_f(run.structure["clustering"])
    outcome = {
        None: "this early folder does not say whether it starts from",
        True: "it also starts from",
        False: "it does not start from",
    }[met]
    why = f"E is {run.components['clustering']}: {outcome} the previous centers"
    return Assumption("warm start", met, why)


def _keeps_f(clustering: Any) -> bool:
    """Whether E never raises F: it takes the nearest center, or K-means that also starts there.

    >>> _keeps_f({"is": "Auto", "kmeans": {"is": "KMeans", "warm": True}, "criterion": "both"})
    True
    """
    if not isinstance(clustering, dict):
        return False
    inside = (value for value in clustering.values() if isinstance(value, dict))
    warm = clustering.get("warm") is True
    return clustering.get("is") == "Nearest" or warm or any(map(_keeps_f, inside))


def _one_importance(run: RunEvidence) -> Assumption:
    """The clustering and the mean weigh clients alike."""
    met = None
    if run.structure is not None:
        same = {"is": "Mean", "importance": run.structure["importance"]}
        met = run.structure["aggregation"] in ({"is": "Mean"}, same)
    why = f"clusters by {run.components['importance']}, averages with "
    return Assumption("one λ", met, why + run.components["aggregation"])


def _plain_steps(run: RunEvidence) -> Assumption:
    """A local step is w ← w − η∇l of all columns, and nothing else."""
    optimizer = run.plan.get("optimizer", "sgd")
    changes = [] if optimizer == "sgd" else [optimizer]
    changes += [
        f"{name} {run.plan[name]:g}"
        for name in ("momentum", "weight_decay", "max_gradient")
        if run.plan.get(name)
    ]
    if run.structure and "local" in run.structure:
        plain = run.structure["local"] == {"is": "Train", "mu": 0.0}
        local = run.components.get("local", str(run.structure["local"]))
    else:  # an early folder
        local = run.components.get("objective", "empirical")
        plain = local == "empirical"
    changes += [] if plain else [local]
    shared = run.components["shared"]
    changes += [] if shared == "all" else [f"shared {shared}"]
    return Assumption("plain steps", not changes, ", ".join(changes) or "w ← w − η∇l")


def _one_loss(run: RunEvidence) -> Assumption:
    """Training and R use the same loss function."""
    norm = [name for name in run.tensors if name.endswith("running_mean")]
    if norm:
        why = f"BatchNorm trains with batch statistics, R is measured without them ({norm[0]})"
        return Assumption("one loss", False, why)
    if run.is_known_model:
        return Assumption("one loss", True, "no BatchNorm")
    return Assumption(
        "one loss", None, "no BatchNorm; the folder does not say whether there is Dropout"
    )


def _convex(run: RunEvidence) -> Assumption:
    convex_loss = run.task.partition("(")[0] in TASKS and "gamma" not in run.task
    if run.model == "logistic" and convex_loss:
        linear = f"a linear model, {run.task}"
        return Assumption(
            "convex", True, "logistic regression" if run.task == "classification" else linear
        )
    curvatures = [
        (record["theory"]["curvature"], record["round"])
        for record in run.measured
        if record["theory"]["curvature"] is not None
    ]
    least, round = min(curvatures, default=(0.0, 0))
    seen = f"⟨Δ∇, Δω⟩ < 0 in round {round}" if least < 0 else "no secant refutes it"
    if run.is_known_model:
        return Assumption("convex", False, f"a network with hidden layers; {seen}")
    return Assumption("convex", False if least < 0 else None, seen)


def _smooth(run: RunEvidence) -> Assumption:
    logistic = run.model == "logistic"
    kinks = run.is_known_model and not logistic
    facts = ["ReLU has kinks"] if kinks else []
    if run.measured:
        beta = run.measured[-1]["theory"]["beta"]
        facts.append(f"β = {beta:.3g}" if logistic else f"β ≥ {beta:.3g} was met")
    met = True if logistic else False if kinks else None
    return Assumption("smooth", met, "; ".join(facts))


def _whole_data(run: RunEvidence) -> Assumption:
    """Each step uses all data of a client, so that gradients have no noise."""
    noise = run.measured[-1]["theory"]["sigma2"] if run.measured else None
    if noise is None:
        return Assumption("whole data", None, "not recorded")
    if noise == 0:
        return Assumption("whole data", True, "every step sees all data of a client")
    why = f"mini-batches, σ² ≈ {noise:.3g}: the inequality holds for expectations"
    return Assumption("whole data", False, why)
