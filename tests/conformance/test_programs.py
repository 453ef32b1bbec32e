"""Programs: row by row, as declared, and known by name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from torch import nn

from fuzzing import in_turns
from helpers import engines_for
from wecfl import Federation, methods
from wecfl.bilevel.clustering.updates import PulledSteps
from wecfl.bilevel.local import (
    Alone,
    ClusterLosses,
    Ditto,
    Gradients,
    Only,
    Parts,
    Risk,
    Score,
    Train,
)
from wecfl.bilevel.local.dane import NewtonSteps
from wecfl.bilevel.local.feature_contrast import ContrastSteps
from wecfl.bilevel.local.interpolated_models import InterpolatedSteps
from wecfl.bilevel.local.masks import PrunedSteps
from wecfl.bilevel.local.meta import MetaGradient, MetaSteps
from wecfl.bilevel.local.mixture import AddedSteps, MixtureSteps, SoftSteps
from wecfl.bilevel.local.moreau_envelope import MoreauSteps
from wecfl.bilevel.local.prototypes import PrototypeSteps
from wecfl.bilevel.programs import PROGRAMS, decoded, digest, encoded, register
from wecfl.bilevel.representation.telling import (
    Directions,
    InitialUpdate,
    Labels,
    LocalCenters,
    Moments,
    Predictions,
)
from wecfl.bilevel.representation.trial import Trial
from wecfl.bilevel.serving import Mixed, NearestPrototype, Personal, Pruned, Tuned
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Field, Job, Program, Sent, needs_of, private_columns
from wecfl.engine import LocalEngine, make_engine
from wecfl.errors import ConfigError, ModelError
from wecfl.models import build, layout_of, row_of

M, SEED = 5, 3
PLAN = LocalPlan(steps=4, batch=4, lr=0.1, done=np.array([4, 2, 4, 1, 3]))
PRIORS = np.full((3, 3), 1 / 3, np.float32)
PROTOTYPES = Sent({
    "prototypes": np.random.default_rng(5).random((M, 3, 5)).astype(np.float32),
    "counts": np.tile([2.0, 0.0, 1.0], (M, 1)),
})  # fmt: skip
EVERY: list[Program] = [
    Train(), Train(0.5), Alone(), Ditto(0.7), Parts("classifier", 2), MetaSteps(0.1),
    MetaSteps(0.1, hessian=True), MoreauSteps(2.0, 3), Only(), MetaGradient(2), InterpolatedSteps(),
    NewtonSteps(0.1), Trial(3), MixtureSteps(), MixtureSteps(priors=True), SoftSteps(0.5),
    AddedSteps(0.5), ClusterLosses(),
    ClusterLosses(1), Risk(), Gradients(), Gradients(1),
    Score(), Score(Personal(), "train", Ditto()), Score(Tuned(3)),
    Score(Mixed(), of=MixtureSteps()), Directions(2, 3, 6), PrototypeSteps(0.3), PrunedSteps(0.0),
    PrunedSteps(0.0, channels=True), Score(Pruned(), of=PrunedSteps()),
    ContrastSteps(2.0), Score(NearestPrototype(), of=PrototypeSteps()),
    InitialUpdate(3), PulledSteps(0.5), Labels(3), Predictions(3), Moments(3), LocalCenters(2, 6),
]  # fmt: skip


def module() -> nn.Module:
    made = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    from wecfl.models import reinitialized

    return reinitialized(made, seed=0, which=0)


@pytest.fixture(scope="module")
def engines(fed: Federation) -> Iterator[Mapping[str, LocalEngine]]:
    """Each kind of engine, made once: to start its processes takes longer than a test."""
    with (
        make_engine("native", fed, module(), workers=2) as native,
        make_engine("torch", fed, module(), workers=2) as torch,
    ):
        assert isinstance(native, LocalEngine) and isinstance(torch, LocalEngine)
        yield {"native": native, "torch": torch}


def asked(engine: LocalEngine, program: Program, shared: str, parts: list[Any]) -> list[Any]:
    """Two exchanges, the clients asked in parts: all that is replied and kept."""
    start = row_of(module())
    noise = np.random.default_rng(0).normal(size=(M, len(start))).astype(np.float32)
    rows = start + 0.01 * noise
    memory: Mapping[str, Any] = {}
    found: list[Any] = []
    for round in range(2):
        replies: dict[str, Any] = {}
        for part in parts:
            who = np.array(part)
            keep = bool(program.replies.keys() & {"model", "models"}) or isinstance(program, Alone)
            job = Job(program, PLAN.of(who), SEED, round, round, shared, keep)
            own = {"model": rows[who], "common": rows[who], **PROTOTYPES.take(who).own}
            sent = Sent(own, {"models": rows[:3], "priors": PRIORS})
            answers = engine.ask(job, sent, who, memory)
            memory = answers.memory
            for name, made in answers.rows.items():
                table = replies.setdefault(name, np.zeros((M, *made.shape[1:]), made.dtype))
                table[who] = made
        found += [*replies.values()]
        rows = replies.get("model", rows)
    return found + [memory[name] for name in sorted(memory)]


@pytest.mark.parametrize(
    ("program", "kind", "shared"),
    in_turns(
        [
            (program, kind, shared)
            for program in EVERY
            for kind in engines_for(program)
            for shared in ("all", "~classifier")
        ],
        turn=0,
    ),
    ids=str,
)
def test_any_partition_of_the_clients_gives_the_same_bits(
    program: Program, kind: str, shared: str, engines: Mapping[str, LocalEngine]
) -> None:
    whole, pairs, each = (
        asked(engines[kind], program, shared, parts)
        for parts in ([range(5)], [[0, 3], [1, 2], [4]], [[i] for i in range(5)])
    )
    assert len(whole) == len(pairs) == len(each) > 0
    for a, b, c in zip(whole, pairs, each, strict=True):
        assert a.tobytes() == b.tobytes() == c.tobytes()


@pytest.mark.parametrize("program", EVERY, ids=str)
def test_a_program_replies_and_keeps_what_it_declares(program: Program, fed: Federation) -> None:
    layout = layout_of(module())
    sizes: Any = {
        "P": layout.width,
        "trainable": layout.trainable,
        "K": 2,
        "C": 3,
        "D": 5,
        "tally": (fed.classes, fed.classes),
    }
    rows = np.repeat(row_of(module())[None], M, axis=0)
    with make_engine("auto", fed, module(), needs=needs_of(program)) as engine:
        job = Job(program, PLAN, SEED, keep=not isinstance(program, Score))
        own = {"model": rows, "common": rows, **PROTOTYPES.own}
        sent = Sent(own, {"models": rows[:2], "priors": PRIORS[:2]})
        answers = engine.ask(job, sent, None, {})
    assert answers.rows.keys() == program.replies.keys()
    for name, declared in program.replies.items():
        made = answers.rows[name]
        assert (made.shape, made.dtype) == ((M, *declared.sized(sizes)), np.dtype(declared.dtype))
    if not isinstance(program, Score):  # which looks at another's memory
        assert answers.memory.keys() - {"begun"} == program.keeps(PLAN).keys()


def test_a_look_at_memory_changes_nothing(fed: Federation) -> None:
    rows = np.repeat(row_of(module())[None], M, axis=0)
    with make_engine("native", fed, module()) as engine:
        kept = engine.ask(Job(Ditto(), PLAN, keep=True), Sent({"model": rows.copy()})).memory
        before = {name: table.copy() for name, table in kept.items()}
        look = Job(Score(Personal(), of=Ditto()), PLAN)
        after = engine.ask(look, Sent({"model": rows}), None, kept).memory
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("program", [Train(), Ditto(), Alone(), AddedSteps()], ids=str)
def test_what_is_not_finite_resets_a_client_to_its_start(program: Any, fed: Federation) -> None:
    rows = np.repeat(row_of(module())[None], M, axis=0)
    lr = np.array([0.1, 1e38, 0.1, 0.1, 0.1], np.float32)
    job = Job(program, LocalPlan(steps=4, batch=4, lr=lr), SEED, keep=True)
    with make_engine("native", fed, module()) as engine:
        answers = engine.ask(job, Sent({"model": rows.copy(), "common": rows.copy()}))
    if "model" in answers.rows:
        broken = ~np.isfinite(answers.rows["model"]).all(axis=1)
        assert broken.tolist() == [False, True, False, False, False]
    for name, field in program.keeps(job.plan).items():
        start = rows[1] if field.start == "received" else np.zeros_like(answers.memory[name][1])
        np.testing.assert_array_equal(answers.memory[name][1], start)
        assert (answers.memory[name][0] != start).any()


@pytest.mark.parametrize("program", EVERY, ids=str)
def test_a_program_travels_by_name_version_and_options(program: Program) -> None:
    import json

    assert decoded(json.loads(json.dumps(encoded(program)))) == program


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"name": "trainn", "version": 1}, "did you mean 'train'"),
        ({"name": "train", "version": 2}, "version 1 here.* 2"),
        ({"name": "train", "version": 1, "nu": 3}, "unknown option of train 'nu'"),
        ({"name": "train", "version": 1, "mu": -3}, "mu must be"),
    ],
)
def test_what_is_not_known_is_refused(given: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        decoded(given)


def test_a_program_of_ones_own(fed: Federation) -> None:
    """FedSGD: one gradient step on all data, without an engine that knows of it."""

    @dataclass(frozen=True, slots=True)
    class Step:
        name: ClassVar[str] = "step"
        version: ClassVar[int] = 1
        replies: ClassVar[Mapping[str, Field]] = {"model": Field(("P",), update=True)}

        def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
            return {}

        def check(self, plan: LocalPlan, layout: Any) -> None: ...

        def __call__(self, site: Any, sent: Any, memory: Any, plan: LocalPlan) -> Any:
            rows = sent.own["model"].copy()
            rows[:, : site.layout.trainable] -= plan.lr * site.gradients(rows)
            return {"model": rows}, {}

    known = digest()
    try:
        own: Any = Step
        register(own)
        assert digest() != known  # a client that does not know it is told at the greeting
        with pytest.raises(ConfigError, match="registered"):
            register(type("Step", (), {"name": "step"}))
        import wecfl

        plan = wecfl.Plan(lr=0.5, momentum=0.0)
        method = methods.fedavg.replace(name="own", local=Step())
        result = wecfl.run(fed, method, model=module(), rounds=20, plan=plan)
        assert result.records[-1]["R_estimate"]["D"] < result.records[0]["R_estimate"]["D"]
    finally:
        PROGRAMS.pop("step", None)


def test_columns_that_do_not_travel() -> None:
    layout = layout_of(build("mlp", shape=(1, 8, 8), classes=10))
    private = private_columns(layout, "~classifier")
    assert private is not None
    assert len(private) == 650
    assert private_columns(layout, "all") is None


def test_a_model_without_a_body_can_not_keep_its_head(fed: Federation) -> None:
    import wecfl

    for method in (methods.fedper(), methods.fedrep(), methods.lg_fedavg()):
        with pytest.raises(ModelError, match="one layer"):
            wecfl.run(fed, method, model="logistic", rounds=1)
