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
from torch import nn

from wecfl.core.engine import Update
from wecfl.core.plan import Correction, Plan
from wecfl.core.state import F32, F64, Int, Reply, Split, State
from wecfl.errors import ConfigError, EngineError
from wecfl.flower.roster import Place, Roster
from wecfl.flower.wire import Refused, Shapes, fingerprint, read_arrays, read_config, request
from wecfl.models.rows import layout_of, reinitialized, row_of

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

    Clients keep their momentum, and the columns that are not `shared`, at their own place; of the
    latter the server's rows hold the common start. `kept` says of how many rounds, so that the
    server can go back to a checkpoint.
    """

    name = "flower"

    def __init__(
        self,
        grid: Grid,
        roster: Roster,
        model: nn.Module,
        *,
        shared: str = "all",
        batch: int = 32,
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
        self._columns = np.arange(self.layout.width)[self.layout.columns(shared)]
        self._quorum, self._least, self._timeout, self._tries = quorum, least, timeout, tries
        self._poll = poll
        self._common: dict[str, Any] = {
            "run": roster.run, "batch": batch, "batchnorm": batchnorm, "shared": shared,
            "kept": kept,
        }  # fmt: skip
        self._greeted: dict[int, float] = {}  # when, by node
        self._greetings: dict[str, int] = {}  # nodes, by message
        self._late: dict[str, float] = {}  # when they expire, by message
        self._looked, self._online = -LOOK, frozenset[int]()
        self._notes: dict[str, Any] = {}
        self._state = {"state_seed": "0", "state_round": 0}  # where clients keep what they need

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

    def train(
        self,
        state: State,
        plan: Plan,
        correction: Correction,
        seed: int,
        active: Sequence[int] | None = None,
    ) -> Update:
        """Q local steps of each client that is online (`wecfl.core.engine.Engine`)."""
        m, packed, columns = len(state.labels), _Packed(), self._columns
        lr = np.broadcast_to(plan.lr, m)
        done = np.broadcast_to(plan.steps if plan.done is None else plan.done, m)
        corrected = {}
        if np.ndim(correction.mu):
            corrected["mu"] = packed(np.asarray(correction.mu, np.float32))
        config = {
            **self._common, "state_seed": str(seed), "seed": str(seed), "round": state.round,
            "steps": plan.steps, "batch": plan.batch, "momentum": plan.momentum,
            "keep_momentum": plan.keep_momentum, "weight_decay": plan.weight_decay,
            "mu": 0.0 if corrected else float(correction.mu),
        }  # fmt: skip
        self._state = {"state_seed": str(seed), "state_round": state.round + 1}
        known = np.full(m, state.round > 0) if state.met is None else state.met
        contents: dict[int, RecordDict] = {}
        for i in self._whom(active):
            rows = {"model": state.model(i)}
            if correction.anchor is not None:
                rows["anchor"] = correction.anchor[i]
            if correction.offset is not None:
                rows["offset"] = correction.offset[i]
            arrays = {name: packed(row[columns]) for name, row in rows.items()}
            own = {"lr": float(lr[i]), "done": int(done[i]), "known": bool(known[i])}
            contents[i] = request(arrays | corrected, config | own)
        shapes: Shapes = {"model": ("float32", (len(columns),))}
        answers, replies = self._ask("train", state.round, contents, shapes, insist=True)
        models = state.fresh()
        for i, answer in answers.items():
            models[i, columns] = answer["model"]
        return models, {}, np.array([replies.get(i, Reply.ABSENT) for i in range(m)], np.int8)

    def losses(
        self,
        models: F32,
        *,
        batches: int | None = None,
        seed: int = 0,
        round: int = 0,
        active: Sequence[int] | None = None,
    ) -> F64:
        """(m, K), L(Ω_k, D_i) (`wecfl.core.engine.Engine`)."""
        whom, unknown = self._whom(active), np.full(len(models), np.nan)
        found = self._query(
            "query.losses", dict.fromkeys(whom, models),
            {"losses": ("float64", (len(models),))}, _drawn(batches, seed, round),
        )  # fmt: skip
        return np.array([found[i]["losses"] if i in found else unknown for i in whom], np.float64)

    def risk(self, models: F32, split: Split = "train") -> F64:
        """(m,), L(ω_i, D_i) (`wecfl.core.engine.Engine`); NaN where there is no answer."""
        found = self._query(
            "query.risk", {i: models[i : i + 1] for i in self._whom(None)},
            {"losses": ("float64", (1,))}, {"split": split},
        )  # fmt: skip
        unknown = np.full(len(models), np.nan)
        unknown[list(found)] = [answer["losses"][0] for answer in found.values()]
        return unknown

    def gradients(
        self, models: F32, *, batches: int | None = None, seed: int = 0, round: int = 0
    ) -> F32:
        """(m, trainable), ∇L(ω_i, D_i) (`wecfl.core.engine.Engine`); zeros without an answer."""
        width = self.layout.trainable
        found = self._query(
            "query.gradients", {i: models[i : i + 1] for i in self._whom(None)},
            {"gradient": ("float32", (width,))}, _drawn(batches, seed, round),
        )  # fmt: skip
        gradients = np.zeros((len(models), width), np.float32)
        for i, answer in found.items():
            gradients[i] = answer["gradient"]
        return gradients

    def confusion(self, models: F32, split: Split) -> Int:
        """(m, C, C), truth by prediction (`wecfl.core.engine.Engine`)."""
        stack, classes = models.reshape(-1, *models.shape[-2:]), self._roster.classes
        if len(stack) > 1 and len(self._columns) < self.layout.width:
            raise ConfigError("over a network, a soft vote can't keep columns private")
        found = self._query(
            "evaluate", {i: stack[:, i] for i in self._whom(None)},
            {"confusion": ("int64", (classes, classes))}, {"split": split},
        )  # fmt: skip
        tables = np.zeros((len(self._roster), classes, classes), np.int64)
        for i, answer in found.items():
            if (answer["confusion"] >= 0).all():
                tables[i] = answer["confusion"]
            else:
                self._refuse(self._roster.names[i], "confusion must not be negative")
        return tables

    def starts(self, which: Sequence[int], seed: int) -> F32:
        """(n, P), number 0 as given, others drawn anew (`wecfl.core.engine.Engine`)."""
        rows = [row_of(reinitialized(self._model, seed, j) if j else self._model) for j in which]
        return np.stack(rows)

    def _whom(self, active: Sequence[int] | None) -> list[int]:
        rows = range(len(self._roster)) if active is None else active
        return sorted({int(row) for row in rows})

    def _query(
        self, kind: str, models: Mapping[int, F32], shapes: Shapes, config: Mapping[str, Any]
    ) -> dict[int, dict[str, Any]]:
        """What clients say of models; those who don't say anything are left out."""
        packed = _Packed()
        contents = {
            i: request(
                {"models": packed(rows[:, self._columns])},
                {**self._common, **self._state, **config},
            )
            for i, rows in models.items()
        }
        return self._ask(kind, int(config.get("round", 0)), contents, shapes)[0]

    def _ask(
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
            Message(
                request({}, self._common), dst_node_id=node, message_type="query.hello", ttl=AGAIN
            )
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
            told = read_config(message, name=str, samples=int, key=int, classes=int, layout=str)
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


def _drawn(batches: int | None, seed: int, round: int) -> dict[str, Any]:
    """How much of its data a client looks at; 0: all of it."""
    return {"batches": batches or 0, "seed": str(seed), "round": round}
