"""The schema of a stored result: the JSON file that `wecfl reproduce` writes for each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self, TypeVar

from pydantic import Field, model_validator

from wecfl.folder.schema import (
    AgreementScore,
    ClusterCount,
    Count,
    DriftSchema,
    FiniteNumber,
    Fraction,
    NewcomersSchema,
    NonNegativeNumber,
    Schema,
    StepName,
    Traffic,
    UpdateSide,
)

__all__ = ["ResultSchema"]

AnySchema = TypeVar("AnySchema", bound=Schema)


def _equally_long(schema: AnySchema, *lists: Sequence[object]) -> AnySchema:
    if len({len(values) for values in lists}) > 1:
        lengths = ", ".join(str(len(values)) for values in lists)
        raise ValueError(f"its lists must be equally long, but have {lengths} items")
    return schema


class ResultConfigSchema(Schema):
    """The configuration of the run."""

    method: str
    dataset: str
    clusters: ClusterCount
    clients: Count
    rounds: Count
    steps: Count
    batch: Count


class LearningCurveSchema(Schema):
    """The scores after each round."""

    round: list[Count]
    accuracy: list[Fraction | None]
    macro_f1: list[Fraction | None]
    clusters: list[Count] = Field(default_factory=list)

    @model_validator(mode="after")
    def _has_equal_lists(self) -> Self:
        return _equally_long(self, self.round, self.accuracy, self.macro_f1)


class PlaneSchema(Schema):
    """The places of the clients in a round, by t-SNE."""

    round: Count
    cluster: list[Count]
    x: list[FiniteNumber]
    y: list[FiniteNumber]

    @model_validator(mode="after")
    def _has_equal_lists(self) -> Self:
        return _equally_long(self, self.cluster, self.x, self.y)


class CosinesSchema(Schema):
    """Cosine similarities of the clusters' centers, and of the clients of one cluster."""

    clusters: Annotated[list[Count], Field(min_length=1)]
    centers: list[list[FiniteNumber]]
    cluster: Count
    members: Annotated[list[Count], Field(min_length=1)]
    clients: list[list[FiniteNumber]]

    @model_validator(mode="after")
    def _has_equal_lists(self) -> Self:
        _equally_long(self, self.clusters, self.centers, *self.centers)
        return _equally_long(self, self.members, self.clients, *self.clients)


PerRound = Annotated[list[FiniteNumber], Field(min_length=1)]
"""A value for each round."""


class MeanGradientSchema(Schema):
    """The mean ‖∇L‖² over the first T rounds, and what Theorem 3 promises."""

    measured: PerRound
    promised: PerRound = Field(default_factory=list)


class PicturesSchema(Schema):
    """The data from which the figures of the paper are drawn.

    F is empty if it was not measured, and so are R and B. B and `gradient` are those of a run with
    diagnostics.
    """

    group: list[Count] | None
    rounds: Annotated[list[PlaneSchema], Field(min_length=1)]
    cosine: CosinesSchema
    F: dict[StepName, PerRound]
    R: dict[StepName, PerRound]
    B: dict[UpdateSide, PerRound] = Field(default_factory=dict)
    gradient: MeanGradientSchema = Field(default=None, validate_default=False)  # type: ignore[assignment]

    @model_validator(mode="after")
    def _has_equal_lists(self) -> Self:
        known = [] if self.group is None else [self.group]
        return _equally_long(self, *known, *(plane.x for plane in self.rounds))


class AttackSchema(Schema):
    """How well the attack worked, and whether the attackers were isolated."""

    isolated: Fraction | None
    exposed: Fraction | None
    success: Fraction | None = None


class MachineSchema(Schema):
    """The machine that computed the result."""

    cpu: str
    cores: Count | None
    workers: Count | None = None


class ResultSchema(Schema):
    """A finished run.

    Some keys exist only if they apply: `error` if training diverged, `before` if clients adapt
    models, `traffic` and `cpu_seconds` in newer results, `attack` if clients lied, `newcomers` if
    clients were kept out of the training, `drift` if data change or the method looks for it, and
    `trace` if figures need it.
    """

    config: ResultConfigSchema
    config_hash: str
    seed: Annotated[int, Field(ge=0)]
    member: Count
    votes: Count
    engine: str
    seconds: NonNegativeNumber
    accuracy: Fraction | None
    macro_f1: Fraction | None
    ari: AgreementScore | None
    curve: LearningCurveSchema
    made_by: MachineSchema
    error: str = ""
    attack: AttackSchema = Field(default=None, validate_default=False)  # type: ignore[assignment]
    before: dict[str, Fraction | None] = Field(default_factory=dict)
    traffic: Traffic | None = None
    cpu_seconds: NonNegativeNumber | None = None
    newcomers: NewcomersSchema = Field(default=None, validate_default=False)  # type: ignore[assignment]
    drift: DriftSchema = Field(default=None, validate_default=False)  # type: ignore[assignment]
    trace: PicturesSchema = Field(default=None, validate_default=False)  # type: ignore[assignment]
