"""The engine that asks clients over a network: one message to each, and rounds that end."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import ceil
from time import monotonic, sleep
from typing import Any, Literal, TypeVar

import numpy as np
from flwr.app import Array, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import nn

from wecfl.bilevel.local import digest
from wecfl.core.program import Answers, Job, Sent
from wecfl.core.state import F32, Int, Reply, Table
from wecfl.engine.local import NO_MEMORY
from wecfl.errors import ConfigError, EngineError
from wecfl.flower.roster import Place, Roster
from wecfl.flower.wire import (
    PROTOCOL,
    Refused,
    Shapes,
    fingerprint,
    job_config,
    read_arrays,
    read_config,
    request,
)
from wecfl.models.rows import layout_of, reinitialized, row_of
from wecfl.tasks import Classification

__all__ = ["FlowerEngine"]

log = logging.getLogger("wecfl")

Answer = TypeVar("Answer")
Contents = Mapping[int, RecordDict]
"""What to ask, by row."""

AGAIN = 60.0
"""Seconds after which a node that did not answer a greeting is greeted again."""
LOOK = 3.0
"""Seconds between two looks at who is online."""
SHORTEST = 5.0
"""Seconds that a round waits at least for the rest, once it has a quorum."""


class FlowerEngine:
    """Runs the clients of a roster over a Flower grid (implements `wecfl.core.engine.Engine`).

    A round ends when everyone online has answered; or, once a `quorum` of them gave a valid answer,
    after as long again as that took; or after `timeout` seconds. Training that has no quorum then
    is asked for again, of those who are missing, `tries` times in all, before the run ends with an
    error and can be resumed. Every answer is checked (`wecfl.flower.wire`), and what is refused is
    written to the log with its reason.

    What clients keep – momentum, a personal model, columns that are not shared – is at their own
    place; of private columns the server's rows hold the common start. `kept` says of how many
    exchanges, so that the server can go back to a checkpoint.
    """

    name = "flower"
    task = Classification()

    def __init__(
        self,
        grid: Grid,
        roster: Roster,
        model: nn.Module,
        *,
        batchnorm: Literal["running", "batch"] = "running",
        quorum: float = 0.75,
        least: int = 1,
        timeout: float = 600.0,
        tries: int = 3,
        kept: int = 3,
        poll: float = 0.5,
    ) -> None:
        if not 0 < quorum <= 1:
            raise ConfigError(f"quorum must lie in (0, 1], got {quorum}")
        if not timeout > 0:
            raise ConfigError(f"timeout must be positive, got {timeout}")
        for name, value in (("least", least), ("tries", tries), ("kept", kept)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if least > len(roster):
            raise ConfigError(f"{len(roster)} clients can't give {least} answers")
        self.layout = layout_of(model)
        self._grid, self._roster, self._model = grid, roster, model
        self._quorum, self._least, self._timeout, self._tries = quorum, least, timeout, tries
        self._poll = poll
        self._common: dict[str, Any] = {
            "run": roster.run, "batchnorm": batchnorm, "kept": kept,
        }  # fmt: skip
        self._greeted: dict[int, float] = {}  # when, by node
        self._greetings: dict[str, int] = {}  # nodes, by message
        self._late: dict[str, float] = {}  # when they expire, by message
        self._looked, self._online = -LOOK, frozenset[int]()
        self._notes: dict[str, Any] = {}

    @property
    def sizes(self) -> Int:
        """(m,), |D_i| as told at enrolment."""
        return self._roster.sizes

    @property
    def workers(self) -> int:
        """All clients, each at its own place."""
        return len(self._roster)

    @property
    def nodes(self) -> int:
        """Each has its own."""
        return len(self._roster)

    def notes(self) -> dict[str, Any]:
        """Who joined, what was refused and why, and how many replies came late, since last asked.

        `refused` holds the name of a client, or the number of an unknown node, and the reason.
        """
        told, self._notes = self._notes, {}
        return told

    def enrol(self, least: int, wait: float) -> None:
        """Let clients join: until all places are taken, or `least` of them when `wait` is over."""
        began = monotonic()
        while len(self._roster.nodes) < len(self._roster):
            self._greet()
            self._pull({})
            late = monotonic() - began > wait
            if late and len(self._roster.nodes) >= least:
                break
            if late:
                raise EngineError(
                    f"{len(self._roster.nodes)} of at least {least} clients joined within "
                    f"{wait:g} s ({len(self._online)} nodes are online): start more, or ask for "
                    f"fewer"
                )
            sleep(self._poll)
        log.info("wecfl: %d of %d clients joined", len(self._roster.nodes), len(self._roster))

    def ask(
        self, job: Job, sent: Sent, who: Int | None = None, memory: Table = NO_MEMORY
    ) -> Answers:
        """One message to each client that is online (`wecfl.core.engine.Engine`).

        Where memory is kept it insists on a quorum: it is training. Elsewhere who does not answer
        in time is left out.
        """
        whom = np.arange(len(self._roster)) if who is None else who
        n, packed, columns = len(whom), _Packed(), self.layout.columns(job.shared)
        if "models" in sent.own and job.shared != "all":
            raise ConfigError("over a network, a soft vote can't keep columns private")
        config = {**self._common, **job_config(job), "member": str(job.seed)}
        lr = np.broadcast_to(job.plan.lr, n)
        done = np.broadcast_to(job.plan.steps if job.plan.done is None else job.plan.done, n)
        common = {name: packed(rows[..., columns]) for name, rows in sent.common.items()}
        contents: dict[int, RecordDict] = {}
        for j, i in enumerate(whom.tolist()):
            own = {name: packed(rows[j][..., columns]) for name, rows in sent.own.items()}
            each = {
                "lr": float(lr[j]),
                "done": int(done[j]),
                "known": job.met is not None and bool(job.met[j]),
            }
            contents[i] = request(config | each, own, common)
        shapes, declared = self._shapes(job, sent), job.program.replies
        kind = "train" if job.keep else "query.ask"
        answers, outcome = self._exchange(kind, job.round, contents, shapes, insist=job.keep)
        rows: dict[str, NDArray[Any]] = {
            name: np.zeros((n, *shape), dtype) for name, (dtype, shape) in shapes.items()
        }
        if job.keep and "model" in shapes:
            rows["model"] = np.asarray(sent.own["model"])
        for j, i in enumerate(whom.tolist()):
            for name, made in answers.get(i, {}).items():
                if name == "model" and job.keep:
                    rows[name][j, columns] = made
                elif declared[name].shape == ("tally",) and (why := self.task.complaint(made)):
                    self._refuse(self._roster.names[i], f"{job.program.name}: {why}")
                    outcome[i] = Reply.MALFORMED
                else:
                    rows[name][j] = made
        return Answers(rows, np.array([outcome[i] for i in whom.tolist()], np.int8))

    def _shapes(self, job: Job, sent: Sent) -> Shapes:
        """Of the arrays that must come."""
        models = sent.common.get("models")
        sizes: dict[str, int | tuple[int, ...]] = {
            "P": len(np.arange(self.layout.width)[self.layout.columns(job.shared)]),
            "trainable": self.layout.trainable, "tally": self.task.shape(self.outputs),
            "K": 0 if models is None else len(models),
        }  # fmt: skip
        return {
            name: (field.dtype, field.sized(sizes)) for name, field in job.program.replies.items()
        }

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a sample."""
        return self._roster.classes

    def starts(self, which: Sequence[int], seed: int) -> F32:
        """(n, P), number 0 as given, others drawn anew (`wecfl.core.engine.Engine`)."""
        rows = [row_of(reinitialized(self._model, seed, j) if j else self._model) for j in which]
        return np.stack(rows)

    def _exchange(
        self, kind: str, round: int, contents: Contents, shapes: Shapes, *, insist: bool = False
    ) -> tuple[dict[int, dict[str, Any]], dict[int, Reply]]:
        """The valid answers by row, and what came of each row."""
        answers: dict[int, dict[str, Any]] = {}
        replies = dict.fromkeys(contents, Reply.ABSENT)
        if not contents:
            return answers, replies
        for _ in range(self._tries if insist else 1):
            began = monotonic()
            while True:
                nodes = self._reachable()
                asked = {
                    row: content
                    for row, content in contents.items()
                    if row in nodes and replies[row] in (Reply.ABSENT, Reply.LOST)
                }
                if asked or not insist or answers or monotonic() - began > self._timeout:
                    break
                self._pull({})
                sleep(self._poll)
            there = sum(row in asked or replies[row] != Reply.ABSENT for row in contents)
            need = max(self._least, ceil(self._quorum * there))
            for row in asked:
                replies[row] = Reply.LOST
            open_ = self._push(kind, round, asked, nodes)
            self._collect(open_, shapes, need, answers, replies)
            for row in open_.values():
                log.warning("wecfl: no reply of client %s to %s", self._roster.names[row], kind)
            if len(answers) >= need or not insist:
                return answers, replies
            log.warning(
                "wecfl: round %d has %d valid replies of %d clients, expected at least %d: "
                "asking again", round + 1, len(answers), there, need,
            )  # fmt: skip
        raise EngineError(
            f"round {round + 1} got {len(answers)} valid replies of {there} clients in "
            f"{self._tries} times {self._timeout:g} s, expected at least {need}; the rounds before "
            f"are kept: start the run again when clients are back"
        )

    def _collect(
        self,
        open_: dict[str, int],
        shapes: Shapes,
        need: int,
        answers: dict[int, dict[str, Any]],
        replies: dict[int, Reply],
    ) -> None:
        """Take what comes until the round ends; what stays open would be late."""
        began, reached = monotonic(), 0.0
        while open_:
            for row, message in self._pull(open_):
                samples = self._roster.places[row].samples
                try:
                    answers[row], metrics = read_arrays(message, shapes, samples)
                    replies[row] = Reply.HEARD
                    if metrics.get("restarted"):
                        self._note("restarted", self._roster.names[row])
                        log.warning(
                            "wecfl: client %s has lost its state and starts with none",
                            self._roster.names[row],
                        )
                except Refused as reason:
                    replies[row] = reason.kind
                    self._refuse(self._roster.names[row], str(reason))
            spent = monotonic() - began
            if len(answers) >= need and not reached:
                reached = spent
            if spent > self._timeout or (reached and spent > reached + max(reached, SHORTEST)):
                break
            if open_:
                self._greet()
                sleep(self._poll)
        self._late |= dict.fromkeys(open_, monotonic() + self._timeout + AGAIN)

    def _push(
        self, kind: str, round: int, asked: Contents, nodes: Mapping[int, int]
    ) -> dict[str, int]:
        """Rows by the numbers of their messages."""
        ttl = self._timeout + AGAIN
        messages = [
            Message(
                content, dst_node_id=nodes[row], message_type=kind, group_id=str(round), ttl=ttl
            )
            for row, content in asked.items()
        ]
        numbers = list(self._grid.push_messages(messages)) if messages else []
        return {number: row for number, row in zip(numbers, asked, strict=False) if number}

    def _pull(self, open_: dict[str, int]) -> list[tuple[int, Message]]:
        """The replies to these messages, which are then no longer open; others are sorted out."""
        now, came = monotonic(), []
        self._late = {number: until for number, until in self._late.items() if until > now}
        numbers = [*open_, *self._late, *self._greetings]
        for message in self._grid.pull_messages(numbers) if numbers else ():
            number = message.metadata.reply_to_message_id
            if number in open_:
                came.append((open_.pop(number), message))
            elif number in self._greetings:
                self._welcome(self._greetings.pop(number), message)
            elif self._late.pop(number, None):
                self._notes["late"] = self._notes.get("late", 0) + 1
            else:
                self._refuse(f"node {message.metadata.src_node_id}", "it replies to no message")
        return came

    def _reachable(self) -> dict[int, int]:
        """Nodes by row, of the clients that are online now."""
        self._greet()
        return {row: node for row, node in self._roster.nodes.items() if node in self._online}

    def _greet(self) -> None:
        """Ask nodes that are new who they are; the answers come with others."""
        now = monotonic()
        if now - self._looked < LOOK:
            return
        self._looked, self._online = now, frozenset(self._grid.get_node_ids())
        new = [
            node
            for node in sorted(self._online)
            if self._roster.row(node) is None and now - self._greeted.get(node, -AGAIN) >= AGAIN
        ]
        messages = [
            Message(request(self._common), dst_node_id=node, message_type="query.hello", ttl=AGAIN)
            for node in new
        ]
        numbers = self._grid.push_messages(messages) if messages else []
        for node, number in zip(new, numbers, strict=False):
            self._greeted[node] = now
            if number:
                self._greetings[number] = node

    def _welcome(self, node: int, message: Message) -> None:
        """Give a client its place, or say why not."""
        try:
            told = read_config(
                message, name=str, samples=int, key=int, classes=int, layout=str, protocol=int,
                programs=str,
            )  # fmt: skip
            if (told["protocol"], told["programs"]) != (PROTOCOL, digest()):
                raise Refused("it knows other programs than the server: install the same wecfl")
            if told["layout"] != fingerprint(self.layout):
                raise Refused("its model has other tensors than the server's")
            if told["classes"] != self._roster.classes:
                raise Refused(f"it has {told['classes']} classes, expected {self._roster.classes}")
            before = len(self._roster.places)
            self._roster.join(Place(told["name"], node, told["key"], told["samples"]))
        except Refused as reason:
            self._refuse(f"node {node}", str(reason))
            return
        if len(self._roster.places) > before:
            self._note("joined", told["name"])
        log.info("wecfl: client %s is there, with %d samples", told["name"], told["samples"])

    def _refuse(self, who: str, reason: str) -> None:
        line = " ".join(reason.split())[:300]
        log.warning("wecfl: refused a reply of %s: %s", who, line)
        self._note("refused", [who, line])

    def _note(self, name: str, what: object) -> None:
        self._notes.setdefault(name, []).append(what)


class _Packed:
    """Arrays to send: those of a cluster are equal, so they are one, which travels once."""

    def __init__(self) -> None:
        self._made: dict[bytes, Array] = {}

    def __call__(self, array: F32) -> Array:
        held = np.ascontiguousarray(array)
        return self._made.setdefault(held.tobytes(), Array(held))
