"""`wecfl check`: the paper's lemmas and theorems against what a run recorded.

An inequality is judged in every round on the record alone. Beside it stand the assumptions it
rests on, each met, not met or unknown, and the rounds in which its condition on the learning rate
was met. What each of them says and how it is measured: `docs/theory.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from wecfl.bilevel.bounds import Convergence
from wecfl.errors import RunFolderError
from wecfl.folder.readers import read_metrics, read_summary, tensor_names
from wecfl.from_config import method_of
from wecfl.methods import components, structure
from wecfl.models import MODELS
from wecfl.resolve import resolve
from wecfl.runs.record import Record

__all__ = [
    "Assumption",
    "Check",
    "Inequality",
    "Statement",
    "check_run",
]

SAYS = {
    "Lemma 1": "E does not raise F: F(E) ≤ F(L)",
    "Lemma 2": "M does not raise F: F(M) ≤ F(E)",
    "Lemma 3": "L does not raise F: F(L) ≤ F(M) before",
    "Theorem 1": "F converges: F(L) ≤ F(L) before",
    "Lemma 4": "averaging is cheap: R(D) ≤ R(L) + ηBQU²",
    "Lemma 4*": "as far as convexity alone goes",
    "Lemma 5": "local steps gain: R(L) ≤ R(D) before − …",
    "Theorem 2": "R falls: R(L) ≤ R(L) before",
    "Theorem 2*": "with the condition its proof needs",
    "Theorem 3": "mean ‖∇L‖² ≤ ε after T rounds",
}

MISSING = {
    "theory": "run with --diagnostics",
    **dict.fromkeys("LD", "R was not measured (--no-objectives)"),
    **dict.fromkeys("EM", "F was not measured"),
}
"""What a record may lack, and why."""

TOLERANCE, ROUNDING = 1e-5, 1e-12
"""Of the larger side, and at all: models are float32 rows, so F and R carry rounding."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something a statement rests on: met, not met, or (None) not known from the record."""

    name: str
    met: bool | None
    why: str


@dataclass(frozen=True, slots=True)
class Inequality:
    """left ≤ right in one round, and whether its condition on the learning rate was met."""

    round: int
    left: float
    right: float
    condition: bool = True

    def __post_init__(self) -> None:
        if not all(isinstance(side, float | int) for side in (self.left, self.right)):
            raise TypeError(f"{self.left!r} and {self.right!r} can't be compared")

    @property
    def margin(self) -> float:
        """How much room is left: right − left."""
        return self.right - self.left

    @property
    def held(self) -> bool:
        """Whether left ≤ right, but for rounding."""
        return self.margin >= -TOLERANCE * max(abs(self.left), abs(self.right)) - ROUNDING


@dataclass(frozen=True, slots=True)
class Statement:
    """A lemma or theorem and what became of it in each round."""

    name: str
    says: str
    rounds: Sequence[Inequality]
    assumptions: Sequence[Assumption]
    condition: str = ""
    """In words, if there is one."""
    missing: str = ""
    """What was not recorded, if there are no rounds to judge."""

    @property
    def refuted(self) -> bool:
        """It failed in a round although all it rests on was met."""
        sound = all(assumption.met for assumption in self.assumptions)
        return sound and any(each.condition and not each.held for each in self.rounds)


@dataclass(frozen=True, slots=True)
class Check:
    """All statements about one run."""

    folder: Path
    title: str
    statements: Sequence[Statement]
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def refuted(self) -> list[str]:
        """The statements that failed although all they rest on was met."""
        return [statement.name for statement in self.statements if statement.refuted]

    def json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "folder": str(self.folder),
            "title": self.title,
            "refuted": self.refuted,
            "notes": list(self.notes),
            "statements": [
                {
                    "name": each.name,
                    "says": each.says,
                    "condition": each.condition or None,
                    "missing": each.missing or None,
                    "refuted": each.refuted,
                    "assumptions": [
                        {"name": a.name, "met": a.met, "why": a.why} for a in each.assumptions
                    ],
                    "rounds": [
                        {
                            "round": i.round, "left": i.left, "right": i.right,
                            "margin": i.margin, "held": i.held, "condition": i.condition,
                        }
                        for i in each.rounds
                    ],
                }
                for each in self.statements
            ],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Run:
    """What the run folder says about the assumptions."""

    records: list[Record]
    model: str
    steps: int
    plan: dict[str, Any]
    parts: dict[str, str]
    """The components in words."""
    structure: dict[str, Any] | None
    """The components as values (`wecfl.methods.structure`); None: not recorded."""
    tensors: list[str]

    @property
    def outside(self) -> str:
        """What is not as in the method that the theory is about; empty if all is."""
        covered = {"distance": "squared_euclidean", "steps": "L E M D", "members": "1"}
        older = {"steps": "L E M D" if self.parts.get("order") == "EMDL" else "others"}
        parts = older | self.parts
        return ", ".join(f"{key} {parts[key]}" for key, v in covered.items() if parts[key] != v)

    @property
    def measured(self) -> list[Record]:
        return [record for record in self.records if "theory" in record]

    def rate(self, record: Record) -> float | None:
        """η, if all clients had the same."""
        rates = set(record["clients"]["lr"])
        return rates.pop() if len(rates) == 1 else None


def check_run(folder: Path, epsilon: float | None = None) -> Check:
    """Judge every lemma and theorem on the record of a run; `epsilon` asks for Theorem 3's T."""
    run, title = _read(folder)
    unmeasured = not any("theory" in record for record in run.records)
    notes = ["B, U, σ² and β were not recorded: run with --diagnostics"] * unmeasured
    if (promised := _promise(run, epsilon)) is not None:
        notes.append(promised)
    return Check(folder, title, list(_statements(run)), notes)


def _read(folder: Path) -> tuple[_Run, str]:
    summary, records = read_summary(folder), read_metrics(folder)
    config = summary["config"]
    if "components" in config:  # a run of Python values describes itself
        plan, parts = config["plan"], config["components"]
        values = config.get("structure")
    else:
        chosen = resolve(folder / "config.toml")
        method = method_of(chosen)
        plan, parts, values = chosen.model_dump(), components(method), structure(method)
    if not records:
        raise RunFolderError(f"{folder} holds no complete round: there is nothing to check")
    tensors = tensor_names(folder)
    title = (
        f"{summary['method']}, K = {summary['k']}, {len(records)} rounds, seed {summary['seed']}"
    )
    model = config.get("model", "")
    return _Run(records, model, plan["steps"], plan, parts, values, tensors), title


def _statements(run: _Run) -> Iterator[Statement]:
    if run.outside:
        outside = Assumption("clients compared by their models", False, run.outside)
        for name, says in SAYS.items():
            yield Statement(name, says, [], [outside], missing="not about this method")
        return
    known = {a.name: a for a in _assumptions(run)}

    def state(
        name: str, needs: str, rounds: Callable[[], list[Inequality]], condition: str = ""
    ) -> Statement:
        chosen = [known[need] for need in needs.split(", ")]
        try:
            found, missing = rounds(), ""
        except KeyError as error:
            if error.args[0] not in MISSING:
                raise
            found, missing = [], MISSING[error.args[0]]
        if not found and not missing:
            missing = "needs a second round"
        return Statement(name, SAYS[name], found, chosen, condition, missing)

    records, pairs = run.records, list(pairwise(run.records))

    def within(record: Record, bound: str) -> bool:
        """η_i within the bound for every client; None: no rate is known to be."""
        if "theory" not in record:
            return False
        both = zip(record["clients"]["lr"], record["clients"][bound], strict=True)
        return all(limit is not None and lr <= limit * (1 + TOLERANCE) for lr, limit in both)

    def gentle(record: Record) -> bool:
        return bool(max(record["clients"]["lr"]) * record["theory"]["beta"] <= 2)

    def drifts(record: Record) -> bool:
        """Lemma 4's estimate applies: one rate, and a cluster's clients began from one model."""
        return bool(record["theory"]["together"]) and run.rate(record) is not None

    def outweighs(before: Record, record: Record) -> bool:
        change = before["theory"]["lemma_4"] + record["theory"]["lemma_5"]
        return bool(drifts(before) and gentle(record) and change < 0)

    def steady(before: Record, record: Record) -> bool:
        return drifts(before) and gentle(record) and run.rate(before) == run.rate(record)

    needs = "convex, smooth, one loss, plain steps, whole data"

    yield state("Lemma 1", "warm start", lambda: [
        Inequality(r["round"], r["F"]["E"], r["F"]["L"]) for r in records
    ])  # fmt: skip
    yield state("Lemma 2", "one λ", lambda: [
        Inequality(r["round"], r["F"]["M"], r["F"]["E"]) for r in records
    ])  # fmt: skip
    yield state("Lemma 3", "plain steps", lambda: [
        Inequality(r["round"], r["F"]["L"], b["F"]["M"], within(r, "lr_bound_1"))
        for b, r in pairs
    ], "η_i ≤ ‖ω_i − Ω_k‖ / QU")  # fmt: skip
    yield state("Theorem 1", "warm start, one λ, plain steps", lambda: [
        Inequality(r["round"], r["F"]["L"], b["F"]["L"], within(r, "lr_bound_1"))
        for b, r in pairs
    ], "η_i ≤ ‖ω_i − Ω_k‖ / QU")  # fmt: skip
    yield state("Lemma 4", "convex, one loss, plain steps", lambda: [
        Inequality(r["round"], r["R"]["D"], r["R"]["L"] + r["theory"]["lemma_4"], drifts(r))
        for r in records
    ], "one η, and the clients of a cluster began the round from one model")  # fmt: skip
    yield state("Lemma 4*", "convex, one loss", lambda: [
        Inequality(r["round"], r["R"]["D"], r["R"]["L"] + r["theory"]["convexity"])
        for r in records
    ])  # fmt: skip
    yield state("Lemma 5", needs, lambda: [
        Inequality(r["round"], r["R"]["L"], b["R"]["D"] + r["theory"]["lemma_5"], gentle(r))
        for b, r in pairs
    ], "η ≤ 2/β")  # fmt: skip
    yield state("Theorem 2", needs, lambda: [
        Inequality(r["round"], r["R"]["L"], b["R"]["L"],
                   within(r, "lr_bound_1") and within(r, "lr_bound_2"))
        for b, r in pairs
    ], "η_i below both bounds of the theorem")  # fmt: skip
    yield state("Theorem 2*", needs, lambda: [
        Inequality(r["round"], r["R"]["L"], b["R"]["L"], outweighs(b, r)) for b, r in pairs
    ], "what Lemma 4 allowed the round before is less than what Lemma 5 gains")  # fmt: skip
    yield state("Theorem 3", needs, lambda: list(_convergence(run, steady)),
                "one η ≤ 2/β in all rounds so far")  # fmt: skip


def _convergence(run: _Run, steady: Callable[[Record, Record], bool]) -> Iterator[Inequality]:
    """Theorem 3 after T rounds: the mean ‖∇L‖² so far against the ε that T rounds promise.

    Δ = R_0 − R* is at most R_0, since no cross-entropy is negative; the mean over the Q steps is
    taken as that of the first and the last.
    """
    total, always = 0.0, True
    for T, (before, record) in enumerate(pairwise(run.records), start=1):
        total += sum(record["theory"]["gradient"].values()) / 2
        always = always and steady(before, record)
        promised = _theorem_3(run, record).epsilon(rounds=T)
        if promised < float("inf"):
            yield Inequality(record["round"], total / T, promised, always)


def _theorem_3(run: _Run, record: Record) -> Convergence:
    """Theorem 3 with the constants as known after a round, and the largest η of that round."""
    theory, past = record["theory"], run.records[: record["round"]]
    B = max(b for each in past for side in each["B"].values() for b in side if b is not None)
    lr, R_0 = max(record["clients"]["lr"]), run.records[0]["R"]["L"]
    return Convergence(R_0, run.steps, lr, theory["beta"], theory["sigma2"], B, theory["U"])


def _promise(run: _Run, epsilon: float | None) -> str | None:
    """Theorem 3's T for ε, in words; without ε, the least ε for which there is a T."""
    last = run.records[-1]
    if run.outside or "theory" not in last or "L" not in last["R"] or run.rate(last) is None:
        return None
    theorem = _theorem_3(run, last)
    least = theorem.epsilon(rounds=float("inf"))
    if least == float("inf"):
        return f"Theorem 3: η = {theorem.lr:g} is not below 2/β = {2 / theorem.beta:.3g}"
    if epsilon is None:
        return f"Theorem 3: no number of rounds promises a mean ‖∇L‖² below {least:.3g}"
    rounds = theorem.rounds(epsilon)
    said = f"T ≥ {rounds:.4g}" if epsilon > least else f"no T: at least {least:.3g} is left"
    return f"Theorem 3: for a mean ‖∇L‖² of ε = {epsilon:g} it asks for {said}"


def _improves(clustering: Any) -> bool:
    """Whether E never raises F: by the nearest center, or by K-means that also starts there.

    >>> _improves({"is": "Auto", "kmeans": {"is": "KMeans", "warm": True}, "criterion": "both"})
    True
    """
    if not isinstance(clustering, dict):
        return False
    inside = (each for each in clustering.values() if isinstance(each, dict))
    warm = clustering.get("warm") is True
    return clustering.get("is") == "Nearest" or warm or any(map(_improves, inside))


def _assumptions(run: _Run) -> Iterator[Assumption]:
    parts, plan, measured = run.parts, run.plan, run.measured
    clustering = parts["clustering"]
    values = run.structure
    warm = None if values is None else _improves(values["clustering"])
    outcome = "an early folder does not say whether it improves on"
    if warm is not None:
        outcome = "it improves on" if warm else "it need not improve on"
    yield Assumption("warm start", warm, f"E is {clustering}: {outcome} the previous centers")
    means = ({"is": "Mean"}, {"is": "Mean", "importance": values["importance"]}) if values else ()
    one = None if values is None else values["aggregation"] in means
    yield Assumption("one λ", one, f"clusters by {parts['importance']}, averages with "
                     f"{parts['aggregation']}")  # fmt: skip
    bends = [f"{name} {plan[name]:g}" for name in ("momentum", "weight_decay") if plan[name]]
    does = values["local"] if values and "local" in values else parts.get("objective", "empirical")
    plain = does in ({"is": "Train", "mu": 0.0}, "empirical")
    bends += [str(parts.get("local", does))] * (not plain)
    bends += [f"shared {parts['shared']}"] * (parts["shared"] != "all")
    yield Assumption("plain steps", not bends, ", ".join(bends) or "w ← w − η∇l")
    norm = [name for name in run.tensors if name.endswith("running_mean")]
    named = run.model in (*MODELS, "auto")
    yield Assumption(
        "one loss", False if norm else named or None,
        f"BatchNorm trains with batch statistics, R is measured without ({norm[0]})" if norm
        else "no BatchNorm" + ("" if named else "; Dropout can't be told from the folder"),
    )  # fmt: skip
    logistic = run.model == "logistic"
    bent = [(r["theory"]["curvature"], r["round"]) for r in measured]
    curved = min((each for each in bent if each[0] is not None), default=(0.0, 0))
    seen = f"⟨Δ∇, Δω⟩ < 0 in round {curved[1]}" if curved[0] < 0 else "no secant refutes it"
    yield Assumption(
        "convex", logistic or (False if named or curved[0] < 0 else None),
        "logistic regression" if logistic
        else f"a network with hidden layers; {seen}" if named else seen,
    )  # fmt: skip
    beta = f"β ≥ {run.measured[-1]['theory']['beta']:.3g} by secants" if measured else ""
    yield Assumption(
        "smooth", logistic or (False if named else None),
        "; ".join(filter(None, ["" if logistic or not named else "ReLU has kinks", beta])),
    )  # fmt: skip
    noise = measured[-1]["theory"]["sigma2"] if measured else None
    yield Assumption(
        "whole data", None if noise is None else noise == 0,
        "not recorded" if noise is None
        else "every step sees all data of a client" if noise == 0
        else f"mini-batches, σ² ≈ {noise:.3g}: the inequality is one of expectations",
    )  # fmt: skip
