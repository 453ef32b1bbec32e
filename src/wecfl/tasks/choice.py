"""Chooses the task: by name and options, as a configuration writes it, or by the data themselves.

A task is written as `regression` or `regression(loss=huber, delta=2)`. `auto` looks at the targets:

- float targets are numbers: regression;
- whole numbers, truth values and texts with at most `MAX_CLASSES` distinct values are labels:
  classification. With more distinct values it is an error, since they may be numbers as well;
- several columns of zeros and ones are multi-label.

The headline of a classification, its first score, follows the balance of its classes. Classes count
as imbalanced if the share of the most frequent one is more than half of the way from 1/C (chance)
to 1; with two classes, if one has more than three quarters of the training samples. Then the
headline is the AUC for two classes, and the balanced accuracy for more.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from wecfl.config.named_values import check_options, read_value, write_value
from wecfl.core.clients import Clients
from wecfl.core.task import Task
from wecfl.data.federation import Federation
from wecfl.data.targets import Targets
from wecfl.errors import ConfigError, unknown
from wecfl.tasks.classification import ClassHeadline, Classification
from wecfl.tasks.custom import Custom
from wecfl.tasks.regression import Regression
from wecfl.tasks.yes_or_no import Binary, MultiLabel

__all__ = ["MAX_CLASSES", "REGISTERED_TASKS", "TASKS", "FittedTask", "asked_for", "described",
           "fitted", "for_outputs", "named", "parsed", "register"]  # fmt: skip

MAX_CLASSES = 50
"""Up to this number of distinct values, whole numbers are taken for labels by `auto`."""

TASKS: dict[str, type[Any]] = {
    kind.name: kind for kind in (Classification, Binary, MultiLabel, Regression)
}
"""The tasks that can be named in a configuration."""

REGISTERED_TASKS: dict[str, Custom] = {}
"""Tasks with code of the user's own, by the names they were registered under."""


@dataclass(frozen=True, slots=True, eq=False)
class FittedTask:
    """A task on its data."""

    task: Task
    clients: Federation | Clients
    """The clients, with the targets in the form that the task needs, if their data are here."""
    text: str
    """The task by name and options, without options that follow from the data."""
    reason: str = ""
    """Why it is this task, in one line; empty if the user named it."""


def register(name: str, task: Custom) -> Custom:
    """Register a task of your own under a name, for a configuration or a run over a network.

    Over a network, register it in the code of the server and of every client, under the same name:
    only the name is sent.

    >>> from wecfl.tasks.custom import Metric
    >>> metric = Metric("zero", lambda outputs, targets: 0.0)
    >>> task = register("doctest", Custom(Regression(), metrics=(metric,)))
    >>> parsed("doctest") is task, described(task)
    (True, 'doctest')
    """
    if not name.isidentifier() or name in (*TASKS, "auto", Custom.name):
        raise ConfigError(
            f"the name of a task of your own must be one word that is not used yet, got {name!r}"
        )
    REGISTERED_TASKS[name] = replace(task, label=name)
    return REGISTERED_TASKS[name]


def named(name: str, **options: Any) -> Task:
    """The task of that name.

    >>> named("regression", loss="huber")
    Regression(loss='huber', delta=1.0, quantile=0.5, outputs=0)
    """
    if name in REGISTERED_TASKS and not options:
        return REGISTERED_TASKS[name]
    if name == Custom.name:
        raise ConfigError(
            "a custom task has code of your own, which a text can't give: give the task in Python, "
            "or register it under a name (wecfl.tasks.register)"
        )
    if name not in TASKS:
        raise ConfigError(unknown("task", name, {**TASKS, **REGISTERED_TASKS}))
    check_options("task", TASKS[name], options)
    task: Task = TASKS[name](**options)
    return task


def parsed(text: str) -> Task:
    """The task that a text names.

    >>> parsed("regression(loss=quantile, quantile=0.9)").quantile
    0.9
    >>> parsed("regresion")
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: unknown task 'regresion'; did you mean 'regression'?
    """
    if text.strip().partition("(")[0].strip() == Custom.name:
        return named(Custom.name)
    name, options = read_value(text, "task")
    return named(name, **options)


def described(task: Task) -> str:
    """The text that names a task, from which `parsed` makes it; without options that have defaults.

    >>> described(Regression(loss="huber", delta=2.0)), described(Classification())
    ('regression(loss=huber, delta=2.0)', 'classification')
    """
    if isinstance(task, Custom):
        loss = [] if task.loss is None else [f"loss={_name_of(task.loss)}"]
        listed = ", ".join(metric.name for metric in task.metrics)
        names = [f"metrics=[{listed}]"] * bool(task.metrics)
        parts = ", ".join([f"of={described(task.of)}", *loss, *names])
        return task.label or f"{task.name}({parts})"
    return write_value(task)


def for_outputs(task: Task, outputs: int) -> Task:
    """The task with this number of outputs, if the task does not say it.

    >>> for_outputs(Regression(), 3).outputs, for_outputs(Classification(2), 3).outputs
    (3, 2)
    """
    if isinstance(task, Custom):
        return replace(task, of=for_outputs(task.of, outputs))
    if task.outputs:
        return task
    value: Any = task
    names = {field.name for field in fields(value)} & {"classes", "outputs"}
    open_task: Task = replace(value, **dict.fromkeys(names, outputs))
    return open_task


def _name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))


def fitted(task: Task | str, federation: Federation) -> FittedTask:
    """The task on these data; `auto` chooses one, and other texts are `parsed`.

    >>> xs, ys = [np.zeros((4, 1))] * 2, [[0.5, 1.5, 2.0, 0.0]] * 2
    >>> found = fitted("auto", Federation.from_arrays(xs, ys))
    >>> found.task.name, found.reason
    ('regression', 'regression, since targets are floats (if labels: classification)')
    """
    names = federation.pipeline.classes if federation.pipeline else None
    asked, reason = asked_for(task, federation.y, names)
    if reason:
        logging.getLogger("wecfl").info("wecfl: task: %s", reason)
    ready, held = asked.fit(federation)
    if isinstance(ready, Classification | Binary) and ready.headline == "auto":
        ready = replace(ready, headline=_headline(held))
    return FittedTask(ready, held, described(asked), reason)


def _headline(federation: Federation) -> ClassHeadline:
    """The first score, by the balance of the classes among the clients."""
    held = np.bincount(federation.y[np.concatenate(federation.train)])
    classes = max(int(np.count_nonzero(held)), 2)
    if held.max() / held.sum() <= (1 / classes + 1) / 2:
        return "auto"  # the accuracy
    return "auc" if federation.classes == 2 else "balanced_accuracy"


def asked_for(task: Task | str, y: Targets, names: Sequence[str] | None = None) -> tuple[Task, str]:
    """The task before it is fitted, and for `auto` the reason why the targets suggest it.

    `names` are the names of the classes, if the targets were texts.

    >>> asked_for("auto", np.array([0, 1, 1]))[1]
    'classification of 2 distinct whole numbers (if quantities: regression)'
    """
    if not isinstance(task, str):
        return task, ""
    return _chosen(y, names) if task == "auto" else (parsed(task), "")


def _chosen(y: Targets, names: Sequence[str] | None) -> tuple[Task, str]:
    if y.dtype.kind == "f":
        several = "" if y.ndim == 1 else f" of {y.shape[1]} numbers"
        return (
            Regression(),
            f"regression{several}, since targets are floats (if labels: classification)",
        )
    distinct = np.unique(y)
    if y.ndim == 2:
        if not np.isin(distinct, (0, 1)).all():
            raise ConfigError(
                f"the targets are {y.shape[1]} whole numbers for each sample, and not all are 0 or "
                "1: choose task regression, or give one label for each sample"
            )
        several = f"{y.shape[1]} answers of 0 or 1"
        return MultiLabel(), f"multi-label, since targets are {several} (if quantities: regression)"
    if names is not None and len(distinct) > MAX_CLASSES:
        raise ConfigError(
            f"the targets are texts with {len(distinct)} distinct values, more than "
            f"{MAX_CLASSES}: choose task classification if each of them is a class"
        )
    if len(distinct) > MAX_CLASSES:
        raise ConfigError(
            f"the targets are whole numbers with {len(distinct)} distinct values from "
            f"{distinct[0]} to {distinct[-1]}, which may be labels or quantities: "
            "choose task classification or task regression"
        )
    if names is not None:
        return Classification(), f"classification of {len(distinct)} distinct names"
    what = f"{len(distinct)} distinct whole numbers"
    return Classification(), f"classification of {what} (if quantities: regression)"
