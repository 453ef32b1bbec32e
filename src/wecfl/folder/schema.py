"""The schema of each file of a run folder. Readers check a file against it once, when they read it.

A file may hold more keys than its schema names. A file that breaks its schema is refused in one
line, so that later code never finds a text in the place of a number.
"""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

__all__ = [
    "AgreementScore",
    "ClientSchema",
    "ClusterCount",
    "ConfigSchema",
    "Count",
    "EnvironmentSchema",
    "FiniteNumber",
    "Fraction",
    "NewcomerSchema",
    "NewcomersSchema",
    "NonNegativeNumber",
    "RosterSchema",
    "RoundSchema",
    "RunListSchema",
    "Schema",
    "StepName",
    "SummarySchema",
]

ROUNDING_TOLERANCE = 1e-9
Fraction = Annotated[float, Field(ge=-ROUNDING_TOLERANCE, le=1 + ROUNDING_TOLERANCE)]
"""A number in [0, 1], up to rounding: an accuracy or a mean of accuracies."""
AgreementScore = Annotated[float, Field(ge=-1 - ROUNDING_TOLERANCE, le=1 + ROUNDING_TOLERANCE)]
"""A number in [−1, 1], up to rounding: the adjusted Rand index or a silhouette."""
Count = Annotated[int, Field(ge=0, lt=2**53)]
"""A whole number that JSON holds exactly."""
ClusterCount = Count | Literal["auto"]
"""K as the user chose it."""
FiniteNumber = Annotated[float, Field(allow_inf_nan=False)]
"""A number that is neither infinite nor NaN."""
NonNegativeNumber = Annotated[FiniteNumber, Field(ge=0)]
"""A finite number that is not negative."""
MeasuredValue = float | bool | str | None
"""Any measurement of a round. It is not finite if training diverged."""
MeasuredList = MeasuredValue | list[MeasuredValue]
EmptyAsNone = BeforeValidator(lambda text: None if text == "" else text)
"""Reads an empty cell of a CSV table as None."""
StepName = Literal["L", "E", "M", "D"]
"""A step of Algorithm 1."""
Traffic = Annotated[dict[Literal["up", "down", "messages"], Count], Field(min_length=3)]
"""The bytes that clients sent and received, and the number of messages. Folders of earlier versions
do not have it."""
UpdateSide = Literal["0", "Q"]
"""Before (0) and after (Q) the local update."""


class Schema(BaseModel):
    """The base of all schemas: more keys are allowed, types must match exactly."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


# config.toml


class ComponentsSchema(Schema):
    """The table `components`: the parts of a method that was given as a Python value."""

    distance: str
    clustering: str
    importance: str
    aggregation: str
    shared: str
    members: str
    local: str | None = None
    objective: str | None = None
    """The key of early folders in place of `local`."""
    steps: str = ""
    order: str = ""
    """The key of folders of format 1 in place of `steps`."""


class StructureSchema(Schema):
    """The table `structure`: the same parts as values, which `wecfl check` reads."""

    clustering: dict[str, Any] | str
    importance: dict[str, Any] | str
    aggregation: dict[str, Any] | str


class PlanSchema(Schema):
    """The table `plan`: how clients train."""

    steps: Count
    batch: Count = 0
    lr: FiniteNumber | Literal["theory"] = 0.0
    momentum: FiniteNumber
    weight_decay: FiniteNumber
    keep_momentum: bool = True
    optimizer: str = "sgd"
    adam_beta2: FiniteNumber = 0.0
    adam_eps: FiniteNumber = 0.0
    max_gradient: FiniteNumber | None = None
    epochs: Count | None = None


class PrivacyChoiceSchema(Schema):
    """What clients do to their updates before they send them."""

    clip: FiniteNumber
    noise: FiniteNumber
    delta: FiniteNumber


class FurtherSchema(Schema):
    """The table `further`: other choices of a run from Python values that `wecfl.load` needs."""

    batchnorm: Literal["running", "batch"] = "running"
    privacy: PrivacyChoiceSchema | None = None
    unseen: Count | None = None


class ConfigSchema(Schema):
    """`config.toml`, of a run from a configuration or from Python values."""

    method: str = ""
    dataset: str = ""
    partition: str = ""
    model: str = ""
    task: str = ""
    alpha: list[FiniteNumber] = []
    classes_per: list[Count] = []
    transform: list[str] = []
    mixture: FiniteNumber | None = None
    drift: str | None = None
    rounds: Count = 1
    clusters: ClusterCount = 1
    seed: Annotated[int, Field(ge=0, lt=2**128)] = 0
    structure: StructureSchema | None = None
    further: FurtherSchema | None = None
    components: ComponentsSchema | None = None
    plan: PlanSchema | None = None

    @model_validator(mode="after")
    def _has_components_and_plan(self) -> Self:
        if (self.components is None) != (self.plan is None):
            raise ValueError("it needs both tables, components and plan, or neither")
        return self


class RunListSchema(Schema):
    """`runs.toml`: tables like `config.toml` by the names of the run folders."""

    __pydantic_extra__: dict[str, ConfigSchema]


# summary.json


def _check_score(schema: Schema, name: str) -> None:
    """Refuse a schema that does not hold this score as a number, or as None if it is unknown."""
    if name not in schema.model_fields_set:
        raise ValueError(f"it has no '{name}'")
    value = getattr(schema, name)
    if value is not None and not (isinstance(value, float | int) and isfinite(value)):
        raise ValueError(f"the score {name} must be a finite number, got {value!r}")


class PrivacySchema(Schema):
    """The privacy budget that clients have spent."""

    epsilon: NonNegativeNumber | None
    delta: Fraction
    replies: Count


class NewcomersSchema(Schema):
    """How well the clients that were kept out of the training were assigned."""

    clients: Count
    novel: Count
    right: Fraction | None
    accuracy: Fraction | None = None
    members: FiniteNumber | None
    recall: Fraction | None
    false_alarms: Fraction | None


class AutoClustersSchema(Schema):
    """The number of clusters K that the run found, and since which round."""

    k: Count
    since: Count
    settled: Count | None
    best: Count
    silhouette: AgreementScore | None
    asked: dict[str, FiniteNumber] = {}


class DriftSchema(Schema):
    """Which clients drifted, and which were found (`wecfl.runs.drift_summary`)."""

    rounds: list[Count]
    changed: Count
    found: Count | None = None
    at_once: Count | None = None
    moved: Count | None = None
    alarms: Count | None = None
    looks: Count | None = None
    who: list[Count] = []


class SummarySchema(Schema):
    """`summary.json`."""

    method: str
    k: ClusterCount
    rounds: Count
    scores: Annotated[dict[str, Literal["higher", "lower"]], Field(min_length=1)] = {
        "accuracy": "higher", "macro_f1": "higher"}  # fmt: skip
    """The task's scores, the headline first, and whether higher or lower is better."""
    accuracy: Fraction | None = None
    macro_f1: Fraction | None = None
    worst_decile: FiniteNumber | None = None
    ari: AgreementScore | None
    clusters: Count | None
    seconds: NonNegativeNumber
    seed: Annotated[int, Field(ge=0)]
    status: str
    engine: str = ""
    settled: Count | None = None
    choice: AutoClustersSchema | None = None
    drift: DriftSchema | None = None
    attack: dict[str, Fraction | None] = {}
    privacy: PrivacySchema | None = None
    newcomers: NewcomersSchema | None = None
    traffic: Traffic | None = None
    stopped: str = ""

    @model_validator(mode="after")
    def _has_scores(self) -> Self:
        if self.rounds and self.clusters is None:
            raise ValueError(f"scores are missing after {self.rounds} rounds")
        for name in self.scores:
            _check_score(self, name)
        if self.newcomers is not None:
            _check_score(self.newcomers, next(iter(self.scores)))
        return self


# metrics.jsonl


class ClientScoresSchema(Schema):
    """One value per client in each list; more lists with `diagnostics`."""

    __pydantic_extra__: dict[str, list[float | None] | None]
    accuracy: list[Fraction | None] | None = None
    macro_f1: list[Fraction | None] | None = None
    lr: list[float] | None = None
    lr_bound_1: list[float | None] | None = None
    lr_bound_2: list[float | None] | None = None

    @model_validator(mode="after")
    def _has_all_clients(self) -> Self:
        lists = {name: values for name, values in dict(self).items() if values is not None}
        if not lists:
            raise ValueError("clients holds no score")
        count = len(next(iter(lists.values())))
        for name, values in lists.items():
            if len(values) != count:
                raise ValueError(
                    f"{name} has {len(values)} values, expected one for each of the {count} clients"
                )
        return self


class TheorySchema(Schema):
    """The quantities of the paper's theory that `diagnostics` measure in a round."""

    U: float
    U_round: float
    sigma2: float
    beta: float
    curvature: float | None
    gradient: Annotated[dict[UpdateSide, float], Field(min_length=2)]
    lemma_4: float
    lemma_5: float
    convexity: float
    together: bool


class RoundSchema(Schema):
    """A line of `metrics.jsonl` (`wecfl.runs.record.RECORD_KEYS`)."""

    __pydantic_extra__: dict[str, MeasuredList | dict[str, MeasuredList | dict[str, MeasuredValue]]]
    round: Annotated[Count, Field(ge=1)]
    accuracy: Fraction | None = None
    macro_f1: Fraction | None = None
    worst_decile: FiniteNumber | None = None
    cluster_scores: list[float | None] = []
    network: dict[str, Any] = {}
    traffic: Traffic | None = None
    ari: AgreementScore | None
    clusters: Count
    sizes: list[Count]
    clients: ClientScoresSchema
    F: dict[StepName, float]
    R: dict[StepName, float]
    R_estimate: dict[StepName, float] = {}
    B: Annotated[dict[UpdateSide, list[float | None]], Field(min_length=2)] | None = None
    theory: TheorySchema | None = None
    notes: dict[str, FiniteNumber | list[FiniteNumber | None] | None] = {}
    lr: NonNegativeNumber | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        known = {**dict(self.clients)}.keys() & self.model_fields_set
        if not known:
            raise ValueError("it has no score that is also given for its clients")
        for name in known:
            _check_score(self, name)
        if self.F and set(self.F) != set("LEM"):
            raise ValueError("F must hold the steps L, E and M, or none")
        for name in ("R", "R_estimate"):
            if getattr(self, name) and set(getattr(self, name)) != set("LD"):
                raise ValueError(f"{name} must hold the steps L and D, or none")
        if self.B and len({*map(len, self.B.values())}) > 1:
            raise ValueError("B must hold the same number of clusters before and after L")
        if self.theory and (self.B is None or self.clients.lr is None):
            raise ValueError("theory needs B and the clients' lr, which are missing")
        return self


# The other files


class EnvironmentSchema(Schema):
    """`env.json`."""

    command: str = ""
    packages: dict[str, str] = {}


class ClientRowSchema(Schema):
    """The common cells of `clients.csv` and `newcomers.csv`, which are converted from texts."""

    model_config = ConfigDict(strict=False)

    client: str
    samples: Count
    group: Annotated[Count | None, EmptyAsNone]
    cluster: Count


class ClientSchema(ClientRowSchema):
    """A line of `clients.csv`. It has no scores if no round was completed."""

    __pydantic_extra__: dict[str, Annotated[float | None, EmptyAsNone]]
    refused: Count = 0
    accuracy: Annotated[Fraction | None, EmptyAsNone] = None
    macro_f1: Annotated[Fraction | None, EmptyAsNone] = None


class NewcomerSchema(ClientRowSchema):
    """A line of `newcomers.csv`."""

    __pydantic_extra__: dict[str, Annotated[float | None, EmptyAsNone]]
    confidence: Annotated[Fraction | None, EmptyAsNone]
    distance: NonNegativeNumber
    loss: float = 0.0
    novelty: Annotated[NonNegativeNumber | None, EmptyAsNone] = None
    limit: Annotated[NonNegativeNumber | None, EmptyAsNone]
    novel: bool
    accuracy: Annotated[Fraction | None, EmptyAsNone] = None
    macro_f1: Annotated[Fraction | None, EmptyAsNone] = None


class ClientPlaceSchema(Schema):
    """A client of `roster.json`: its name, its Flower node, its key and its numbers of samples."""

    name: str
    node: Annotated[int, Field(ge=0)]
    key: Count
    samples: Annotated[Count, Field(ge=1)]
    tests: Count | None = None
    shape: list[Count] | None = None


class RosterSchema(Schema):
    """`roster.json`, of a run over a network."""

    run: str
    clients: Annotated[Count, Field(ge=1)]
    shape: list[Count] = []
    places: list[ClientPlaceSchema]
