"""`wecfl check`: the paper's lemmas and theorems against what a run recorded.

An inequality is judged in every round, by the record alone. The result also says which of its
assumptions are met, not met or unknown, and in which rounds its condition on the learning rate was
met. `docs/theory.md` explains the statements, and how their quantities are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from wecfl.runs.record import Record
from wecfl.theory.assumptions import RunEvidence, assumptions
from wecfl.theory.rate import mean_gradients, theorem_3
from wecfl.theory.verdicts import RELATIVE_TOLERANCE, Assumption, Check, Inequality, Statement

__all__ = ["check_run"]

STATEMENTS = {
    "Lemma 1": "E does not raise F: F(E) ≤ F(L)",
    "Lemma 2": "M does not raise F: F(M) ≤ F(E)",
    "Lemma 3": "L does not raise F: F(L) ≤ F(M) before",
    "Theorem 1": "F converges: F(L) ≤ F(L) before",
    "Lemma 4": "averaging is cheap: R(D) ≤ R(L) + ηBQU²",
    "Lemma 4*": "what follows from convexity alone",
    "Lemma 5": "local steps gain: R(L) ≤ R(D) before − …",
    "Theorem 2": "R falls: R(L) ≤ R(L) before",
    "Theorem 2*": "with the condition its proof needs",
    "Theorem 3": "mean ‖∇L‖² ≤ ε after T rounds",
}

WHY_MISSING = {
    "theory": "run with --diagnostics",
    **dict.fromkeys(
        "LD", "R was not measured on all data: leave out --no-objectives, run with --diagnostics"
    ),
    **dict.fromkeys("EM", "F was not measured"),
}
"""Why a record may not have these keys."""
UNKNOWN_OF_A_FLEET = {
    **dict.fromkeys(STATEMENTS.keys() - {"Lemma 1", "Lemma 2"}, "a fleet has no R"),
    **dict.fromkeys(("Lemma 3", "Theorem 1"), "a fleet has other clients in each round"),
}
"""Why these can't be judged on a fleet. Lemmas 1 and 2 are about the clients of one round."""


def check_run(folder: Path, epsilon: float | None = None) -> Check:
    """Judge every lemma and theorem on the record of a run.

    With `epsilon`, the result also says how many rounds T Theorem 3 needs for a mean ‖∇L‖² of ε.
    """
    run = RunEvidence.read(folder)
    unmeasured = not any("theory" in record for record in run.records)
    notes = ["B, U, σ² and β were not recorded: run with --diagnostics"] * unmeasured
    if run.fleet:
        notes = ["a fleet: F is that of the clients that took part in the round"]
    if (needed := _rounds_needed(run, epsilon)) is not None:
        notes.append(needed)
    return Check(folder, run.title, list(_statements(run)), notes)


def _statements(run: RunEvidence) -> Iterator[Statement]:
    if run.outside:
        outside = Assumption("clients compared by their models", False, run.outside)
        for name, says in STATEMENTS.items():
            yield Statement(name, says, [], [outside], missing="not about this method")
        return
    known = {a.name: a for a in assumptions(run)}
    records, pairs = run.records, list(pairwise(run.records))

    def state(
        name: str, needs: str, rounds: Callable[[], list[Inequality]], condition: str = ""
    ) -> Statement:
        chosen = [known[need] for need in needs.split(", ")]
        if run.fleet and (unknown := UNKNOWN_OF_A_FLEET.get(name)):
            return Statement(name, STATEMENTS[name], [], chosen, condition, unknown)
        try:
            found, missing = rounds(), ""
        except KeyError as error:
            if error.args[0] not in WHY_MISSING:
                raise
            found, missing = [], WHY_MISSING[error.args[0]]
        if not found and not missing:
            missing = "η is not below 2/β in any round" if pairs else "needs a second round"
        return Statement(name, STATEMENTS[name], found, chosen, condition, missing)

    needs = "convex, smooth, one loss, plain steps, whole data"

    yield state("Lemma 1", "warm start", lambda: [
        Inequality(r["round"], r["F"]["E"], r["F"]["L"]) for r in records
    ])  # fmt: skip
    yield state("Lemma 2", "one λ", lambda: [
        Inequality(r["round"], r["F"]["M"], r["F"]["E"]) for r in records
    ])  # fmt: skip
    yield state("Lemma 3", "plain steps", lambda: [
        Inequality(r["round"], r["F"]["L"], b["F"]["M"], _within(r, "lr_bound_1"))
        for b, r in pairs
    ], "η_i ≤ ‖ω_i − Ω_k‖ / QU")  # fmt: skip
    yield state("Theorem 1", "warm start, one λ, plain steps", lambda: [
        Inequality(r["round"], r["F"]["L"], b["F"]["L"], _within(r, "lr_bound_1"))
        for b, r in pairs
    ], "η_i ≤ ‖ω_i − Ω_k‖ / QU")  # fmt: skip
    yield state("Lemma 4", "convex, one loss, plain steps", lambda: [
        Inequality(r["round"], r["R"]["D"], r["R"]["L"] + r["theory"]["lemma_4"],
                   _began_together(run, r))
        for r in records
    ], "one η, and the clients of a cluster began the round from one model")  # fmt: skip
    yield state("Lemma 4*", "convex, one loss", lambda: [
        Inequality(r["round"], r["R"]["D"], r["R"]["L"] + r["theory"]["convexity"])
        for r in records
    ])  # fmt: skip
    yield state("Lemma 5", needs, lambda: [
        Inequality(r["round"], r["R"]["L"], b["R"]["D"] + r["theory"]["lemma_5"], _smooth_enough(r))
        for b, r in pairs
    ], "η ≤ 2/β")  # fmt: skip
    yield state("Theorem 2", needs, lambda: [
        Inequality(r["round"], r["R"]["L"], b["R"]["L"],
                   _within(r, "lr_bound_1") and _within(r, "lr_bound_2"))
        for b, r in pairs
    ], "η_i below both bounds of the theorem")  # fmt: skip
    yield state("Theorem 2*", needs, lambda: [
        Inequality(r["round"], r["R"]["L"], b["R"]["L"], _gains_more(run, b, r)) for b, r in pairs
    ], "Lemma 5 gains more than Lemma 4 allowed the round before")  # fmt: skip
    yield state("Theorem 3", needs, lambda: list(_convergence(run)),
                "one η ≤ 2/β in all rounds so far")  # fmt: skip


def _within(record: Record, bound: str) -> bool:
    """Whether η_i is within the bound for every client; False if the bound is unknown."""
    if "theory" not in record or record["clients"][bound] is None:
        return False
    both = zip(record["clients"]["lr"], record["clients"][bound], strict=True)
    return all(limit is not None and lr <= limit * (1 + RELATIVE_TOLERANCE) for lr, limit in both)


def _smooth_enough(record: Record) -> bool:
    """Whether η ≤ 2/β."""
    return bool(max(record["clients"]["lr"]) * record["theory"]["beta"] <= 2)


def _began_together(run: RunEvidence, record: Record) -> bool:
    """Whether all clients had the same η, and those of each cluster began with the same model."""
    return bool(record["theory"]["together"]) and run.rate(record) is not None


def _gains_more(run: RunEvidence, before: Record, record: Record) -> bool:
    """Whether Lemma 5 gains more than Lemma 4 allowed the round before."""
    change = before["theory"]["lemma_4"] + record["theory"]["lemma_5"]
    return bool(_began_together(run, before) and _smooth_enough(record) and change < 0)


def _steady(run: RunEvidence, before: Record, record: Record) -> bool:
    """Whether η is as in the round before, and small enough."""
    if not (_began_together(run, before) and _smooth_enough(record)):
        return False
    return run.rate(before) == run.rate(record)


def _convergence(run: RunEvidence) -> Iterator[Inequality]:
    """Theorem 3 after each number of rounds T for which it gives a bound."""
    always = True
    found = mean_gradients(run.records, run.steps)
    for (before, record), (mean, promised) in zip(pairwise(run.records), found, strict=True):
        always = always and _steady(run, before, record)
        if promised < float("inf"):
            yield Inequality(record["round"], mean, promised, always)


def _rounds_needed(run: RunEvidence, epsilon: float | None) -> str | None:
    """The number of rounds T that Theorem 3 asks for; without ε, the smallest possible ε."""
    last = run.records[-1]
    if run.outside or "theory" not in last or "L" not in last["R"] or run.rate(last) is None:
        return None
    theorem = theorem_3(run.records, run.steps)
    least = theorem.epsilon(rounds=float("inf"))
    if least == float("inf"):
        return f"Theorem 3: η = {theorem.lr:g} is not below 2/β = {2 / theorem.beta:.3g}"
    if epsilon is None:
        return f"Theorem 3: no number of rounds promises a mean ‖∇L‖² below {least:.3g}"
    rounds = theorem.rounds(epsilon)
    answer = f"T ≥ {rounds:.4g}" if epsilon > least else f"no T: ε must be above {least:.3g}"
    return f"Theorem 3: for a mean ‖∇L‖² of ε = {epsilon:g} it asks for {answer}"
