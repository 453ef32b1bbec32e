"""The configuration of an experiment: a flat list of choices."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

__all__ = [
    "INCIDENTAL_KEYS",
    "METHOD_OPTIONS",
    "PAPER_PARTITIONS",
    "PARTITION_KEYS",
    "PRESETS",
    "Config",
    "one_line",
]


MAX_COUNT = 1_000_000
"""The largest number of rounds, steps, clients and so on. A larger one is surely a typing error."""


class Config(BaseModel):
    """All choices of a run. The defaults are the digits experiment of `make run`.

    >>> Config(clusters=3).clusters
    3
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    method: str = Field("wecfl", description="The method; `wecfl methods` lists them.")
    options: tuple[tuple[str, bool | int | float | str], ...] = Field(
        (), description="Further options of the method, as pairs of name and value."
    )
    clusters: Annotated[int, Field(ge=1, le=MAX_COUNT)] | Literal["auto"] = Field(
        10, description="K, clusters, or models of a soft vote; auto: wecfl and fesem choose K."
    )
    criterion: Literal["both", "silhouette", "bic"] = Field(
        "both", description="The score by which --clusters auto chooses K."
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
        "head", description="What clients are clustered by: head, linear, parameters or a pattern."
    )
    importance: Literal["method", "data-size", "uniform", "batches"] = Field(
        "method", description="λ, how much a client counts; method: as the method defines it."
    )
    warm_start: bool = Field(
        True, description="K-means also starts from the previous centers, so that F never rises."
    )
    loss_batches: int | None = Field(
        None,
        ge=1,
        le=MAX_COUNT,
        description="Mini-batches on which IFCA estimates a loss (default: all data).",
    )

    dataset: str = Field(
        "digits",
        description="A name from `wecfl data list`, a .npz, .csv or .parquet file, or a folder of "
        ".npz files.",
    )
    client_column: str | None = Field(
        None, description="The column of a table that says which client a row belongs to."
    )
    target: str | None = Field(None, description="The column of a table that is to be predicted.")
    features: tuple[str, ...] | None = Field(
        None, description="The columns of a table to predict it from (default: all others)."
    )
    scale: Literal["auto", "none", "standard", "minmax", "pixels"] = Field(
        "auto",
        description="How numbers are scaled, by statistics that clients send; auto: standard for "
        "tables, else none.",
    )
    scale_by: Literal["all", "client"] = Field(
        "all", description="Scale all clients alike, or each client by its own statistics."
    )
    impute: Literal["mean", "median"] | float | None = Field(
        None, description="What stands for a missing number of a table: mean, median or a number."
    )
    data_dir: str | None = Field(
        None, description="The folder in which data sets are looked for first."
    )
    partition: str = Field(
        "clusterwise-dirichlet", description="How the samples are divided among the clients."
    )
    alpha: tuple[float, ...] | None = Field(
        None, description="The Dirichlet parameters of the partition, such as 0.1 10."
    )
    classes_per: tuple[int, ...] | None = Field(
        None, description="Classes per group and per client in an n-class partition, such as 3 2."
    )
    clients: int = Field(50, ge=1, le=MAX_COUNT, description="m, the number of clients.")
    groups: int = Field(
        10,
        ge=1,
        le=MAX_COUNT,
        description="The number of hidden groups in a cluster-wise partition.",
    )
    holdout: float = Field(
        0.2,
        ge=0,
        lt=1,
        description="The share of test data, where the data come without test data; 0: no scores.",
    )
    validation: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Test on this share of the training data, which is held out from it.",
    )

    model: str = Field(
        "auto",
        description="The model: cnn-fashion, cnn-cifar, mlp, logistic, auto (by the data), or your "
        "own, FILE.py:NAME, which runs the code of that file.",
    )
    rounds: int = Field(
        30, ge=1, le=MAX_COUNT, description="T, the number of communication rounds."
    )
    steps: int = Field(
        10,
        ge=1,
        le=MAX_COUNT,
        description="Q, the number of mini-batches that a client trains on in a round.",
    )
    batch: int = Field(32, ge=1, le=MAX_COUNT, description="The number of samples in a mini-batch.")
    lr: Annotated[float, Field(ge=0)] | Literal["theory"] = Field(
        0.001,
        description="η, the learning rate; theory: Theorem 1's bound, computed in every round.",
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="The momentum of SGD.")
    keep_momentum: bool = Field(
        True, description="Whether clients keep their momentum between rounds."
    )
    weight_decay: float = Field(0.0, ge=0, description="The weight decay of SGD.")
    batchnorm: Literal["running", "batch"] = Field(
        "running",
        description="What BatchNorm uses in tests: running statistics, or those of each batch.",
    )

    participation: float = Field(
        1.0, gt=0, le=1, description="The share of clients that take part in a round."
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="The probability that a client trains but its reply is lost."
    )
    stragglers: float = Field(
        0.0, ge=0, lt=1, description="The probability that a client completes fewer than Q steps."
    )
    refuse_above: float = Field(
        100.0,
        gt=1,
        description="Refuse an update that is this many times longer than the median of the round.",
    )
    aggregation: Literal[
        "mean", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median", "norm-clip"
    ] = Field("mean", description="How the models of a cluster's clients are combined into one.")
    tolerated: float | None = Field(
        None,
        ge=0,
        lt=0.5,
        description="The share of attackers that trimmed-mean and Krum tolerate (default: 0.2).",
    )
    min_cluster: int = Field(
        1, ge=1, description="Dissolve clusters with fewer clients, and never average fewer models."
    )
    attack: (
        Literal["label-flip", "sign-flip", "noise", "scale", "a-little-is-enough", "backdoor"]
        | None
    ) = Field(None, description="What the attackers among the clients do.")
    attackers: float | None = Field(
        None, gt=0, lt=1, description="The share of clients that are attackers (default: 0.2)."
    )
    attack_strength: float | None = Field(
        None, gt=0, description="The strength of sign-flip, noise, scale or a-little-is-enough."
    )
    clip: float | None = Field(
        None,
        gt=0,
        description="Clients clip their update to this length before they send it, for privacy.",
    )
    noise: float | None = Field(
        None,
        ge=0,
        description="The noise that clients add to their clipped update, in units of --clip.",
    )
    delta: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="δ, for which the privacy budget ε is reported (default: 1e-5).",
    )
    newcomers: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Keep this share of clients out of the training, and assign them at its end.",
    )
    unseen: int | None = Field(
        None,
        ge=0,
        description="Also keep the hidden group of this number out: is it recognized as novel?",
    )

    seed: int = Field(
        0, ge=0, lt=2**128, description="The seed: everything random follows from it."
    )
    engine: Literal["auto", "native", "torch", "ray"] = Field(
        "auto",
        description="What trains the clients; auto: native if it knows every layer, else torch.",
    )
    ray_address: str | None = Field(
        None, description="The Ray cluster that this machine belongs to: HOST:PORT or auto."
    )
    workers: int | None = Field(
        None,
        ge=1,
        le=MAX_COUNT,
        description="The number of threads, processes or actors (default: one per core).",
    )
    objectives: bool | None = Field(
        None, description="Measure R on all training data twice a round (default: unless --clip)."
    )
    diagnostics: bool = Field(False, description="Also measure what `wecfl check` needs.")
    trace: bool | None = Field(
        None, description="Record the clients' distances for `wecfl report` (default: up to 500)."
    )
    score_every: int = Field(
        1, ge=1, description="Test the clients every so many rounds, and always in the last one."
    )
    checkpoint_every: int = Field(1, ge=1, description="Write a checkpoint every so many rounds.")

    @field_validator("options", mode="before")
    @classmethod
    def _pairs(cls, value: object) -> object:
        """Turn a table into pairs, which can be compared and hashed."""
        return tuple(sorted(value.items())) if isinstance(value, Mapping) else value

    @field_validator("*")
    @classmethod
    def _sayable(cls, value: object) -> object:
        """Refuse text that is not valid UTF-8, as file names may be: it can't be written."""
        if isinstance(value, str) and value.encode(errors="replace").decode() != value:
            raise PydanticCustomError("text", "input should be valid UTF-8")
        return value

    def completed(self) -> Config:
        """The configuration with the paper's parameters of the partition, where none were given.

        >>> Config(partition="clusterwise-nclass").completed().classes_per
        (3, 2)
        """
        usual = PAPER_PARTITIONS.get(self.partition, {})
        missing = {key: value for key, value in usual.items() if getattr(self, key) is None}
        return self.model_copy(update=missing)

    def toml(self) -> dict[str, Any]:
        """The choices as a TOML table, without those that are None."""
        values = self.model_dump(mode="json", exclude_none=True, exclude={"options"})
        further = {name: value for name, value in self.options if name not in KEY_OF_OPTION}
        return values | ({"options": further} if further else {})


PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {
        "clients": 200,
        "groups": 10,
        "rounds": 100,
        "steps": 10,
        "batch": 32,
        "lr": 0.001,
        "momentum": 0.9,
        "keep_momentum": True,
        "weight_decay": 0.0,
        "mu": 0.95,
        "representation": "head",
        "importance": "method",
        "warm_start": True,
        "loss_batches": 3,
        "batchnorm": "batch",
    },
}
"""Presets by name: what differs from the defaults. `paper` is the experiment of its tables."""

REQUIRES = {
    "attackers": "attack", "attack_strength": "attack", "noise": "clip", "delta": "noise",
    "features": "target", "impute": "target", "target": "client_column", "client_column": "target",
}  # fmt: skip
"""Choices that only have a meaning together with another choice."""

METHOD_OPTIONS = {
    "clusters": "k", "criterion": "criterion", "warm_start": "warm", "eps1": "eps1",
    "eps2": "eps2", "cluster_round": "round", "threshold": "threshold", "linkage": "linkage",
    "metric": "metric", "mu": "mu", "loss_batches": "batches",
}  # fmt: skip
"""Choices that are options of some methods, and the names that the methods give them. They apply to
the methods that have the option. Other options of a method are in `options`."""

KEY_OF_OPTION = {option: key for key, option in METHOD_OPTIONS.items()}
"""The key of the configuration for an option of a method."""

PARTITION_KEYS = ("partition", "alpha", "classes_per", "clients", "groups")
"""Choices about the partition of a data set. They do not apply to a folder of clients, nor to a
table that says which client a row belongs to."""

INCIDENTAL_KEYS = (
    "seed", "ray_address", "workers", "data_dir", "objectives", "diagnostics", "trace",
    "score_every", "checkpoint_every",
)  # fmt: skip
"""Choices that do not make it another experiment."""

PAPER_PARTITIONS: dict[str, dict[str, Any]] = {
    "clientwise-dirichlet": {"alpha": (0.1,)},
    "clientwise-nclass": {"classes_per": (2,)},
    "clusterwise-dirichlet": {"alpha": (0.1, 10.0)},
    "clusterwise-nclass": {"classes_per": (3, 2)},
}
"""The paper's parameters of its four partitions, used where none are given."""


def one_line(error: ValidationError, known: Container[str] | None = Config.model_fields) -> str:
    """The first problem of pydantic's report, in one line."""
    first = error.errors()[0]
    # Of a union (lr) pydantic also names the member that failed.
    key = ".".join(
        str(p) for p in first["loc"] if known is None or p in known or isinstance(p, int)
    )
    if first["type"] == "missing":
        return f"it has no '{key}'"
    problem = first["msg"].replace("Input", "input", 1).replace("tuple", "list")
    for other in error.errors()[1:]:  # a word that stands for a number: auto, theory
        same = other["loc"][:1] == first["loc"][:1] and isinstance(first["input"], str)
        if same and other["type"] == "literal_error":
            problem += f" or {other['ctx']['expected']}"
    got = repr(first["input"])
    return f"{key and key + ': '}{problem}, got {got if len(got) <= 40 else got[:40] + '…'}"
