"""One experiment as a flat list of choices: TOML file, preset and flags come together here."""

from __future__ import annotations

import tomllib
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from wecfl.errors import ConfigError, unknown

__all__ = [
    "INCIDENTAL_KEYS",
    "METHOD_OPTIONS",
    "PAPER_PARTITIONS",
    "PARTITION_KEYS",
    "PRESETS",
    "Config",
    "check_together",
    "one_line",
    "resolve",
]


MAX_COUNT = 1_000_000
"""Rounds, steps, clients, …: more is a slip of the finger, and would end in a full memory."""


class Config(BaseModel):
    """Every choice of a run. The defaults are the digits experiment of `make run`.

    >>> Config(clusters=3).clusters
    3
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    method: str = Field("wecfl", description="The method; `wecfl methods` lists them.")
    options: tuple[tuple[str, bool | int | float | str], ...] = Field(
        (), description="Further options of the method, by name and value."
    )
    clusters: Annotated[int, Field(ge=1, le=MAX_COUNT)] | Literal["auto"] = Field(
        10, description="K, clusters (or members of a soft vote); auto: wecfl, fesem choose it."
    )
    criterion: Literal["both", "silhouette", "bic"] = Field(
        "both", description="By what --clusters auto chooses K."
    )
    eps1: float = Field(
        0.4, ge=0, description="CFL parts clusters whose mean update is shorter than this,"
    )
    eps2: float = Field(1.0, ge=0, description="while the longest update is longer than this.")
    cluster_round: int = Field(
        1, ge=1, le=MAX_COUNT, description="The round in which FL+HC clusters."
    )
    threshold: float = Field(
        0.5, gt=0, description="The distance up to which FL+HC merges clusters of updates."
    )
    linkage: Literal["ward", "complete", "average", "single"] = Field(
        "average", description="How FL+HC measures the distance of two clusters,"
    )
    metric: Literal["euclidean", "cosine"] = Field("cosine", description="and that of two updates.")
    mu: float = Field(0.95, ge=0, description="FedProx's pull towards the received model.")
    representation: str = Field(
        "head",
        description="What clients are clustered by: head, linear, parameters or a name pattern.",
    )
    importance: Literal["method", "data-size", "uniform", "batches"] = Field(
        "method", description="λ, how much a client counts; 'method' leaves it to the method."
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
        "digits", description="A name from `wecfl data list`, a .npz, or a folder of them."
    )
    data_dir: str | None = Field(None, description="Where to look for data sets first.")
    partition: str = Field("clusterwise-dirichlet", description="How samples go to clients.")
    alpha: tuple[float, ...] | None = Field(
        None, description="Dirichlet parameter(s) of the partition: 0.1 10."
    )
    classes_per: tuple[int, ...] | None = Field(
        None, description="Classes per group and client of an n-class partition: 3 2."
    )
    clients: int = Field(50, ge=1, le=MAX_COUNT, description="m, the number of clients.")
    groups: int = Field(
        10, ge=1, le=MAX_COUNT, description="Generating groups of a cluster-wise partition."
    )
    holdout: float = Field(
        0.2, gt=0, lt=1, description="Test share of clients that bring no test data."
    )
    validation: float | None = Field(
        None, gt=0, lt=1, description="Test on this share of the training data, held out from it."
    )

    model: str = Field("auto", description="cnn-fashion, cnn-cifar, mlp, logistic or auto.")
    rounds: int = Field(30, ge=1, le=MAX_COUNT, description="T, communication rounds.")
    steps: int = Field(
        10, ge=1, le=MAX_COUNT, description="Q, mini-batches of local training in a round."
    )
    batch: int = Field(32, ge=1, le=MAX_COUNT, description="Samples in a mini-batch.")
    lr: Annotated[float, Field(ge=0)] | Literal["theory"] = Field(
        0.001, description="η, the learning rate; theory: Theorem 1's bound, anew in every round."
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of SGD.")
    keep_momentum: bool = Field(True, description="Clients keep their momentum between rounds.")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay of SGD.")
    batchnorm: Literal["running", "batch"] = Field(
        "running", description="BatchNorm in tests: running statistics, or those of each batch."
    )

    participation: float = Field(
        1.0, gt=0, le=1, description="Share of clients that take part in a round."
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="Probability that a client trains but its reply is lost."
    )
    stragglers: float = Field(
        0.0, ge=0, lt=1, description="Probability that a client gets to fewer than Q steps."
    )
    refuse_above: float = Field(
        100.0, gt=1, description="Refuse updates so many times longer than the round's median."
    )
    aggregation: Literal[
        "mean", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median", "norm-clip"
    ] = Field("mean", description="How a cluster's models become one.")
    tolerated: float | None = Field(
        None, ge=0, lt=0.5, description="Share of liars that trimmed-mean and Krum expect: 0.2."
    )
    min_cluster: int = Field(
        1, ge=1, description="Dissolve smaller clusters, and average no fewer models than that."
    )
    attack: (
        Literal["label-flip", "sign-flip", "noise", "scale", "a-little-is-enough", "backdoor"]
        | None
    ) = Field(None, description="What clients do that lie.")
    attackers: float | None = Field(
        None, gt=0, lt=1, description="The share of clients that lie: 0.2."
    )
    attack_strength: float | None = Field(
        None, gt=0, description="Of sign-flip, noise, scale or a-little-is-enough."
    )
    clip: float | None = Field(
        None, gt=0, description="Clients clip their update to this length before they send it."
    )
    noise: float | None = Field(
        None, ge=0, description="Their noise beside it, in units of --clip, for privacy."
    )
    delta: float | None = Field(
        None, gt=0, lt=1, description="δ, for which the privacy budget ε is told: 1e-5."
    )
    newcomers: float | None = Field(
        None, gt=0, lt=1, description="Keep this share of clients out, and assign them at the end."
    )
    unseen: int | None = Field(
        None, ge=0, description="Keep a generating group out as well, by number: is it found novel?"
    )

    seed: int = Field(0, ge=0, lt=2**128, description="Everything random follows from it.")
    engine: Literal["auto", "native", "torch", "ray"] = Field(
        "auto",
        description="What trains the clients; auto: native where it knows every layer.",
    )
    ray_address: str | None = Field(
        None, description="A Ray cluster that this machine is a node of: HOST:PORT or auto."
    )
    workers: int | None = Field(
        None,
        ge=1,
        le=MAX_COUNT,
        description="Threads, processes or actors (default: one per core).",
    )
    objectives: bool | None = Field(
        None, description="Measure R on all training data twice a round (default: unless --clip)."
    )
    diagnostics: bool = Field(False, description="Also measure what `wecfl check` judges.")
    trace: bool | None = Field(
        None, description="Record the clients' distances for `wecfl report` (default: up to 500)."
    )
    score_every: int = Field(
        1, ge=1, description="Rounds between two tests of the clients; the last is always tested."
    )
    checkpoint_every: int = Field(1, ge=1, description="Rounds between two checkpoints.")

    @field_validator("options", mode="before")
    @classmethod
    def _pairs(cls, value: object) -> object:
        """A table is as good as pairs, which can be compared and hashed."""
        return tuple(sorted(value.items())) if isinstance(value, Mapping) else value

    @field_validator("*")
    @classmethod
    def _sayable(cls, value: object) -> object:
        """A file name may hold bytes that are no text; what a run writes down is."""
        if isinstance(value, str) and value.encode(errors="replace").decode() != value:
            raise PydanticCustomError("text", "input should be valid UTF-8")
        return value

    def completed(self) -> Config:
        """With the paper's parameters of the partition, where none were given.

        >>> Config(partition="clusterwise-nclass").completed().classes_per
        (3, 2)
        """
        usual = PAPER_PARTITIONS.get(self.partition, {})
        missing = {key: value for key, value in usual.items() if getattr(self, key) is None}
        return self.model_copy(update=missing)

    def toml(self) -> dict[str, Any]:
        """The choices that TOML can hold: all but those left open."""
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
"""By name, what differs from the defaults. `paper`: the experiment of the paper's tables."""

REQUIRES = {
    "attackers": "attack", "attack_strength": "attack", "noise": "clip", "delta": "noise"
}  # fmt: skip
"""Choices that need another one."""

METHOD_OPTIONS = {
    "clusters": "k", "criterion": "criterion", "warm_start": "warm", "eps1": "eps1",
    "eps2": "eps2", "cluster_round": "round", "threshold": "threshold", "linkage": "linkage",
    "metric": "metric", "mu": "mu", "loss_batches": "batches",
}  # fmt: skip
"""Choices that are options of some methods, and what the methods call them. They apply where a
method has the option; those that are not in this list are `options`."""

KEY_OF_OPTION = {option: key for key, option in METHOD_OPTIONS.items()}

PARTITION_KEYS = ("partition", "alpha", "classes_per", "clients", "groups")
"""Choices about sharing a data set out; they don't apply to a folder of clients."""

INCIDENTAL_KEYS = (
    "seed", "ray_address", "workers", "data_dir", "objectives", "diagnostics", "trace",
    "score_every", "checkpoint_every",
)  # fmt: skip
"""Choices that do not make another experiment."""

PAPER_PARTITIONS: dict[str, dict[str, Any]] = {
    "clientwise-dirichlet": {"alpha": (0.1,)},
    "clientwise-nclass": {"classes_per": (2,)},
    "clusterwise-dirichlet": {"alpha": (0.1, 10.0)},
    "clusterwise-nclass": {"classes_per": (3, 2)},
}
"""The paper's parameters of its four partitions, used where none are given."""


MAX_FILE_BYTES = 1_000_000
"""Bytes of a configuration file."""


def resolve(
    file: Path | None = None, preset: str | None = None, flags: Mapping[str, Any] | None = None
) -> Config:
    """Defaults, then the preset, then the TOML file, then the flags: the last word counts.

    >>> resolve(preset="paper", flags={"rounds": 2}).model_dump(include={"clients", "rounds"})
    {'clients': 200, 'rounds': 2}
    >>> resolve(flags={"cluters": 3})
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: unknown key 'cluters'; did you mean 'clusters'?
    """
    said = _read(file) if file else {}
    where = f"{file}: " if file else ""
    if not isinstance(said.get("options", {}), dict):
        raise ConfigError(f"{where}options must be a table, got {said['options']!r}")
    if isinstance(said.get("method"), dict):
        said = _table(said, where)
    written = said.pop("preset", "default")
    preset = written if preset is None else preset
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ConfigError(where + unknown("preset", str(preset), PRESETS))
    flags = flags or {}
    if flags.get("partition", said.get("partition")) != said.get("partition"):
        # Another partition than the file's: its parameters don't apply.
        said = {key: value for key, value in said.items() if key not in ("alpha", "classes_per")}
    values = {**PRESETS[preset], **said, **flags}
    if "options" in said:
        same = flags.get("method", said.get("method")) == said.get("method")
        kept = {
            name: each
            for name, each in said["options"].items()
            if KEY_OF_OPTION.get(name) not in flags
        }
        values["options"] = {**(kept if same else {}), **flags.get("options", {})}
    for key in values:
        if key not in Config.model_fields:
            raise ConfigError(where + unknown("key", key, Config.model_fields))
    try:
        lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
        config = Config.model_validate(values | lists, strict=True)
    except ValidationError as error:
        raise ConfigError(where + one_line(error)) from None
    check_together(where, **config.model_dump())
    return config.completed()


def check_together(where: str = "", **choices: Any) -> None:
    """Refuse choices that say nothing without another one.

    >>> check_together(attack=None, attackers=0.2)
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: attackers says nothing without attack
    """
    for part, whole in REQUIRES.items():
        if choices.get(part) is not None and choices[whole] is None:
            raise ConfigError(f"{where}{part} says nothing without {whole}")
    if choices.get("ray_address") is not None and choices["engine"] != "ray":
        raise ConfigError(f"{where}ray_address says nothing without engine ray")


def _table(said: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A table `[method]` with a name and options, as choices.

    >>> _table({"method": {"name": "cfl", "eps1": 0.1}}, "")
    {'method': 'cfl', 'eps1': 0.1, 'options': {'eps1': 0.1}}
    """
    options = dict(said["method"])
    if "name" not in options:
        raise ConfigError(f"{where}the table [method] has no name")
    name = options.pop("name")
    known = {
        KEY_OF_OPTION[option]: value for option, value in options.items() if option in KEY_OF_OPTION
    }
    if twice := sorted(known.keys() & said.keys()):
        raise ConfigError(f"{where}{twice[0]} is said twice: as a key and in [method]")
    return {**said, **known, "method": name, "options": {**said.get("options", {}), **options}}


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            text = stream.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:  # a device or another kind of file, perhaps without an end
            raise ConfigError(f"{file}: more than {MAX_FILE_BYTES} bytes are no configuration")
        return tomllib.loads(text.decode())
    except FileNotFoundError:
        raise ConfigError(f"no configuration file {file}") from None
    except ConfigError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"can't read the configuration {file}: {reason}") from None


def one_line(error: ValidationError, known: Container[str] | None = Config.model_fields) -> str:
    """The first problem of pydantic's report, in one line."""
    first = error.errors()[0]
    # Of a union (lr) pydantic also names the member that failed.
    key = ".".join(
        str(p) for p in first["loc"] if known is None or p in known or isinstance(p, int)
    )
    if first["type"] == "missing":
        return f"it has no '{key}'"
    said = first["msg"].replace("Input", "input", 1).replace("tuple", "list")
    for other in error.errors()[1:]:  # a word that stands for a number: auto, theory
        same = other["loc"][:1] == first["loc"][:1] and isinstance(first["input"], str)
        if same and other["type"] == "literal_error":
            said += f" or {other['ctx']['expected']}"
    got = repr(first["input"])
    return f"{key and key + ': '}{said}, got {got if len(got) <= 40 else got[:40] + '…'}"
