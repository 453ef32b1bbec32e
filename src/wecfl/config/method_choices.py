"""The choices of a configuration that are about the method."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from wecfl.limits import MAX_COUNT

__all__ = ["MethodChoices"]


class MethodChoices(BaseModel):
    """The method, and the options that several methods have."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    method: str = Field("wecfl", description="The method; `wecfl methods` lists them.")
    options: tuple[tuple[str, bool | int | float | str], ...] = Field(
        (), description="Further options of the method, as pairs of name and value."
    )
    clusters: Annotated[int, Field(ge=1, le=MAX_COUNT)] | Literal["auto"] = Field(
        10,
        description="K, the number of clusters, or of models in a soft vote; auto: the method "
        "chooses K (wecfl and fesem only).",
    )
    criterion: Literal["served", "both", "silhouette", "bic"] = Field(
        "served",
        description="How --clusters auto chooses K: served asks how well clusters serve validation "
        "samples; silhouette, bic and both judge by the models alone.",
    )
    eps1: float = Field(
        0.4, ge=0, description="CFL splits only clusters whose mean update is shorter than this."
    )
    eps2: float = Field(
        1.0, ge=0, description="CFL splits only clusters with an update longer than this."
    )
    cluster_round: int = Field(
        1, ge=1, le=MAX_COUNT, description="The round in which FL+HC clusters the clients."
    )
    threshold: float = Field(
        0.5, gt=0, description="FL+HC merges clusters of updates up to this distance."
    )
    linkage: Literal["ward", "complete", "average", "single"] = Field(
        "average", description="How FL+HC measures the distance between two clusters."
    )
    metric: Literal["euclidean", "cosine"] = Field(
        "cosine", description="How FL+HC measures the distance between two updates."
    )
    mu: float = Field(
        0.95, ge=0, description="How strongly FedProx pulls a client towards the model it received."
    )
    representation: str = Field(
        "head",
        description="What clients are clustered by: columns of their models (head, linear, "
        "parameters, or a pattern of tensor names), or what they tell the server (labels, "
        "predictions, moments, update, directions). With head, K is chosen by linear.",
    )
    distance: str = Field(
        "method",
        description="The distance between what clients tell the server; method: the method's own "
        "distance.",
    )
    importance: Literal["method", "data-size", "uniform", "batches"] = Field(
        "method", description="λ, how much each client counts; method: as the method defines it."
    )
    warm_start: bool = Field(
        True, description="K-means also starts from the previous centers, so that F never rises."
    )
    loss_batches: int | None = Field(
        None,
        ge=1,
        le=MAX_COUNT,
        description="The number of mini-batches on which IFCA estimates a loss (default: all "
        "data).",
    )
