"""The task of a run over a network: the same at the server and at every client, sent by name."""

from __future__ import annotations

from dataclasses import replace

from wecfl.core.task import Task
from wecfl.errors import ConfigError
from wecfl.tasks import Classification, Custom, MultiLabel, parsed

__all__ = ["network_task"]


def network_task(task: Task | str | None = None, classes: int | None = None) -> Task:
    """A task that needs nothing else from the data; by default a classification into `classes`.

    Options that follow from the data of all clients can't be known where these data are not
    together: the number of classes or outputs, and balanced weights, must be given. Code is not
    sent, so a task with the user's own code must be registered under a name.

    >>> network_task(classes=3) == network_task("classification(classes=3)")
    True
    >>> network_task("regression")
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: over a network the task regression must say how many outputs a model \
has: regression(outputs=1)
    """
    known = parsed(task) if isinstance(task, str) else task or Classification()
    if classes is not None:
        if not isinstance(known, Classification | MultiLabel):
            raise ConfigError(f"the task {known.name} has no classes: leave out classes")
        known = replace(known, classes=classes)
    inner = known.of if isinstance(known, Custom) else known
    if isinstance(known, Custom) and not known.label:
        raise ConfigError(
            "a task with code of your own can't be sent over a network: register it under the same "
            "name at the server and at every client (wecfl.tasks.register)"
        )
    if not known.outputs:
        option = "classes" if isinstance(inner, Classification | MultiLabel) else "outputs"
        raise ConfigError(
            f"over a network the task {inner.name} must say how many {option} a model has: "
            f"{inner.name}({option}=1)"
        )
    if "balanced" in (getattr(inner, "weights", None), getattr(inner, "weight", None)):
        raise ConfigError(
            "balanced weights follow from the labels of all clients, which stay with them: give "
            "the weights as numbers"
        )
    return known
