"""`Config`, the choices of an experiment: a flat list, each with a description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from wecfl.config.keys import KEY_OF_OPTION, PAPER_PARTITIONS
from wecfl.config.method_choices import MethodChoices
from wecfl.limits import MAX_COUNT, MAX_SEED

__all__ = ["Config"]


class Config(MethodChoices):
    """All choices of a run. The defaults are the digits experiment of `make run`.

    >>> Config(clusters=3).clusters
    3
    """

    dataset: str = Field(
        "digits",
        description="A name from `wecfl data list`, a .npz, .csv or .parquet file, a folder of "
        ".npz files, or a fleet, FILE.py:NAME, which runs the code of that file.",
    )
    client_column: str | None = Field(
        None, description="The column of a table that says which client a row belongs to."
    )
    target: tuple[str, ...] | None = Field(
        None, description="The column of a table to predict, or several columns."
    )
    features: tuple[str, ...] | None = Field(
        None, description="The columns of a table to predict from (default: all others)."
    )
    scale: Literal["auto", "none", "standard", "minmax", "pixels"] = Field(
        "auto",
        description="How numbers are scaled, by statistics that the clients send; auto: standard "
        "for a table, otherwise none.",
    )
    scale_by: Literal["all", "client", "cluster"] = Field(
        "all", description="Scale by the statistics of all clients, each client, or each cluster."
    )
    impute: Literal["mean", "median"] | float | None = Field(
        None, description="What replaces a missing number in a table: mean, median or a number."
    )
    data_dir: str | None = Field(
        None, description="The folder in which to look for data sets first."
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
    registered: int | None = Field(
        None,
        ge=1,
        le=MAX_COUNT,
        description="Train a fleet with this number of registered clients. Each of them draws "
        "--samples samples from one of the --clients.",
    )
    active: int | None = Field(
        None,
        ge=1,
        le=MAX_COUNT,
        description="How many of the registered clients take part in a round (default: 1000).",
    )
    memory: float | None = Field(
        None,
        ge=0,
        description="A table of what registered clients keep is stored on disk if it needs more "
        "gigabytes than this (default: 1).",
    )
    groups: int = Field(
        10,
        ge=1,
        le=MAX_COUNT,
        description="The number of hidden groups in a cluster-wise partition or transform.",
    )
    transform: tuple[str, ...] | None = Field(
        None,
        description="How the clients' samples are changed, so that clients differ, such as "
        "rotation or 'noise(by=client)'; several can be given.",
    )
    mixture: float | None = Field(
        None, gt=0, le=0.5, description="Clients swap this share of samples with other groups."
    )
    drift: str | None = Field(
        None, description="How clients' data change later, such as 'abrupt(round=10, share=0.3)'."
    )
    holdout: float = Field(
        0.2,
        ge=0,
        lt=1,
        description="The share of each client's samples that is held out for testing, if the data "
        "have no test set; with 0, no client is tested.",
    )
    test_set: Literal["divided", "merged", "common"] = Field(
        "divided",
        description="What the data set's test samples are used for: they are divided among the "
        "clients like those for training; or merged with these, and each client holds out a share; "
        "or all clients are tested on all of them (common).",
    )
    test_order: Literal["drawn", "class"] = Field(
        "drawn",
        description="The order of each client's test samples: as drawn, or class by class. It "
        "matters only with --batchnorm batch.",
    )
    copies: int = Field(
        1, ge=1, le=MAX_COUNT, description="Divide this many copies of the data set."
    )
    samples: int | None = Field(
        None,
        ge=1,
        le=MAX_COUNT,
        description="The largest number of training samples of a client (default: no limit, and 30 "
        "in a fleet).",
    )
    validation: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Hold this share of the training data out, and test on it in place of the test "
        "data.",
    )

    model: str = Field(
        "auto",
        description="The model: cnn-fashion, cnn-cifar, cnn-small, cnn-wide, lenet, mlp, mlp-200, "
        "logistic, auto (by the data), or your own, FILE.py:NAME, which runs that file's code.",
    )
    task: str = Field(
        "auto",
        description="What is learned, such as classification or regression(loss=huber); auto: it "
        "follows from the targets.",
    )
    rounds: int = Field(
        30, ge=1, le=MAX_COUNT, description="T, the number of communication rounds."
    )
    until: Literal["rounds", "settled", "score"] = Field(
        "rounds",
        description="When the run ends: after all rounds, or once the clusters or the score no "
        "longer change.",
    )
    patience: int | None = Field(
        None,
        ge=1,
        le=MAX_COUNT,
        description="With --until settled or score: the run ends after this number of rounds "
        "without a change (default: 5).",
    )
    tolerance: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="With --until settled or score: changes up to this size do not count (default: "
        "0.01 of F, or 0 of the score).",
    )
    steps: int = Field(
        10,
        ge=1,
        le=MAX_COUNT,
        description="Q, the number of mini-batches that a client trains on in a round.",
    )
    epochs: int | None = Field(
        None,
        ge=1,
        le=MAX_COUNT,
        description="The number of passes over its data that a client makes in a round, in place "
        "of --steps.",
    )
    batch: int = Field(32, ge=1, le=MAX_COUNT, description="The number of samples in a mini-batch.")
    lr: Annotated[float, Field(ge=0)] | Literal["theory"] = Field(
        0.001,
        description="η, the learning rate; theory: the bound of Theorem 1, computed in every "
        "round.",
    )
    schedule: Literal["constant", "step", "cosine"] = Field(
        "constant", description="How η changes from round to round, after the --warmup."
    )
    decay_rounds: int | None = Field(
        None,
        ge=1,
        le=MAX_COUNT,
        description="The number of rounds after which η is --decay times as large (default for "
        "cosine: all rounds after the --warmup).",
    )
    decay: float | None = Field(
        None,
        ge=0,
        le=1,
        description="The factor by which --schedule lowers η (default: 0.1 for step, 0 for "
        "cosine).",
    )
    warmup: int = Field(
        0, ge=0, le=MAX_COUNT, description="The number of rounds in which η rises to its value."
    )
    optimizer: Literal["sgd", "nesterov", "adam", "adamw"] = Field(
        "sgd", description="The optimizer with which clients train."
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="The momentum of SGD, and β1 of Adam.")
    keep_momentum: bool = Field(
        True, description="Whether clients keep the optimizer's momentum from round to round."
    )
    weight_decay: float = Field(0.0, ge=0, description="The weight decay.")
    adam_beta2: float = Field(0.999, ge=0, lt=1, description="β2 of Adam and AdamW.")
    adam_eps: float = Field(1e-8, gt=0, description="ε of Adam and AdamW.")
    max_gradient: float | None = Field(
        None, gt=0, description="Shorten longer mini-batch gradients to this norm."
    )
    batchnorm: Literal["running", "batch"] = Field(
        "running",
        description="What BatchNorm uses in tests: running statistics, or those of each batch.",
    )

    adapt_steps: int | None = Field(
        None,
        ge=1,
        le=MAX_COUNT,
        description="Also test each client after it has fine-tuned its model by this number of "
        "steps.",
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
    joining: float = Field(
        0.0, ge=0, lt=1, description="The share of clients that join after the run has begun."
    )
    joining_round: int = Field(2, ge=2, description="The first round of those that join later.")
    refuse_above: float = Field(
        100.0,
        gt=1,
        description="Refuse an update that is longer than this many times the median length of the "
        "round.",
    )
    shorten_above: Annotated[float, Field(gt=0)] | Literal["never"] = Field(
        "never",
        description="Shorten longer updates to this many times the median length of the round; "
        "never: shorten none. (Over a network the default is 2.)",
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
        description="The standard deviation of the noise that clients add to their clipped update, "
        "in units of --clip.",
    )
    delta: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="The δ for which the privacy budget ε is reported (default: 1e-5).",
    )
    newcomers: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Keep this share of clients out of the training, and assign them to clusters "
        "at its end.",
    )
    unseen: int | None = Field(
        None,
        ge=0,
        description="Also keep all clients of the hidden group with this number out; they should "
        "be recognized as novel.",
    )

    seed: int = Field(
        0, ge=0, le=MAX_SEED, description="The seed, from which everything random follows."
    )
    engine: Literal["auto", "native", "torch", "ray"] = Field(
        "auto",
        description="The engine that trains the clients; auto: native if it knows every layer of "
        "the model, otherwise torch.",
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "cpu", description="Where the torch engine trains; auto: on a GPU if this machine has one."
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="The numbers with which a GPU computes; bfloat16: mixed precision.",
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
        None,
        description="Whether R is measured, on all training data (default: it is estimated, and "
        "with --clip left out).",
    )
    objectives_every: int | None = Field(
        None,
        ge=1,
        le=MAX_COUNT,
        description="Measure R on all training data in every N-th round, and estimate it in the "
        "others.",
    )
    diagnostics: bool = Field(False, description="Also measure what `wecfl check` needs.")
    trace: bool | None = Field(
        None,
        description="Whether to record the distances between clients, which `wecfl report` draws "
        "(default: for up to 500 clients).",
    )
    score_every: int = Field(
        1,
        ge=1,
        le=MAX_COUNT,
        description="Test the clients in every N-th round; the last round is always tested.",
    )
    checkpoint_every: int = Field(
        1, ge=1, le=MAX_COUNT, description="Write a checkpoint after every N-th round."
    )

    @field_validator("options", "target", mode="before")
    @classmethod
    def _tuple(cls, value: object) -> object:
        """Turn a table into pairs, which can be compared and hashed, and one name into a list."""
        if isinstance(value, Mapping):
            return tuple(sorted(value.items()))
        return (value,) if isinstance(value, str) else value

    @field_validator("*")
    @classmethod
    def _sayable(cls, value: object) -> object:
        """Refuse text that is not valid UTF-8, such as some file names: it can't be written."""
        if isinstance(value, str) and value.encode(errors="replace").decode() != value:
            raise PydanticCustomError("text", "input should be valid UTF-8")
        return value

    def completed(self) -> Config:
        """The configuration with the defaults that follow from other choices.

        These are the paper's parameters of the partition, and the rounds in which a cosine ends. So
        more rounds can be added to a run without changing the learning rates of those it had.

        >>> Config(partition="clusterwise-nclass").completed().classes_per
        (3, 2)
        >>> Config(schedule="cosine", rounds=30, warmup=5).completed().decay_rounds
        25
        """
        usual = PAPER_PARTITIONS.get(self.partition, {})
        if self.schedule == "cosine" and self.warmup < self.rounds:
            usual = {**usual, "decay_rounds": self.rounds - self.warmup}
        missing = {key: value for key, value in usual.items() if getattr(self, key) is None}
        return self.model_copy(update=missing)

    def toml(self) -> dict[str, Any]:
        """The choices as a TOML table; those that are None are left out."""
        values = self.model_dump(mode="json", exclude_none=True, exclude={"options"})
        further = {name: value for name, value in self.options if name not in KEY_OF_OPTION}
        return values | ({"options": further} if further else {})
