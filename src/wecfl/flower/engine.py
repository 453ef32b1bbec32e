"""The engine that asks clients over a network, with one message to each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import nn

from wecfl.channel.privacy import Privacy
from wecfl.core.program import Answers, Job, Sent
from wecfl.core.state import Reply
from wecfl.core.task import Task
from wecfl.core.types import F32, Int, Split, Table
from wecfl.engine.local import NO_MEMORY
from wecfl.errors import ConfigError, EngineError
from wecfl.flower.greeting import read_hello
from wecfl.flower.mailbox import PATIENCE_SECONDS, Delivery, Mailbox
from wecfl.flower.messages import (
    ALL_STEPS,
    Refused,
    Shapes,
    SharedArrays,
    job_config,
    read_arrays,
    request,
)
from wecfl.flower.network_report import NetworkReport, News
from wecfl.flower.roster import Roster
from wecfl.limits import check_at_least_one
from wecfl.models.rows import layout_of, reinitialized, row_of
from wecfl.printing import log
from wecfl.tasks import Classification

__all__ = ["FlowerEngine"]


Contents = Mapping[int, RecordDict]
"""The content of the message to each client, by row."""

GREETING_SECONDS = 60.0
"""A node that did not answer a greeting for this long is greeted again."""

CLIENTS_PER_POLL = 25
"""With more clients than this, the server polls less often: it asks for each reply on its own."""


class FlowerEngine:
    """Runs the clients of a roster over a Flower grid (implements `wecfl.core.engine.Engine`).

    A round ends when all clients that are online have answered. Once a `quorum` of them gave a
    valid answer, it waits for the others as long again as that took, and at least `min_extra_wait`
    seconds. In any case it ends after `timeout` seconds. If training has no quorum by then, the
    missing clients are asked again, `tries` times in all; then the run ends with an error and can
    be resumed. Every answer is checked (`wecfl.flower.messages`). An answer that is refused is
    written to the log with the reason.

    Clients keep their memory (momentum, a personal model, columns that are not shared) on their own
    disks; in private columns the server's rows hold the common start. Clients keep the memory of
    the last `kept` exchanges, so that the server can go back to a checkpoint.

    With `privacy`, clients clip and noise what they send and count it (`wecfl.flower.guard`); their
    largest ε is in the network report. The file `audit` gets one line for each message that comes.

    The server looks for new replies every `poll` seconds, with `patience` for each
    (`wecfl.flower.mailbox`), and for new nodes every `look_every` seconds. It logs what it waits
    for.
    """

    name = "flower"

    def __init__(
        self,
        grid: Grid,
        roster: Roster,
        model: nn.Module,
        *,
        task: Task | None = None,
        batchnorm: Literal["running", "batch"] = "running",
        quorum: float = 0.75,
        min_clients: int = 1,
        timeout: float = 600.0,
        tries: int = 3,
        kept: int = 3,
        poll: float = 0.5,
        look_every: float = 3.0,
        min_extra_wait: float = 5.0,
        patience: float = PATIENCE_SECONDS,
        privacy: Privacy | None = None,
        audit: Path | None = None,
    ) -> None:
        if not 0 < quorum <= 1:
            raise ConfigError(f"quorum must lie in (0, 1], got {quorum}")
        if not timeout > 0:
            raise ConfigError(f"timeout must be positive, got {timeout}")
        check_at_least_one(min_clients=min_clients, tries=tries, kept=kept)
        if min_clients > len(roster):
            raise ConfigError(
                f"at least {min_clients} valid replies are required, but there are only "
                f"{len(roster)} clients: lower min-clients"
            )
        self.layout = layout_of(model)
        self.task = task or Classification(roster.classes)
        self._grid, self._roster, self._model = grid, roster, model
        self._mailbox = Mailbox(grid, patience)
        self._quorum, self._min_clients = quorum, min_clients
        self._timeout, self._tries = timeout, tries
        self._poll, self._look_every, self._min_extra_wait = poll, look_every, min_extra_wait
        self._common: dict[str, Any] = {"run": roster.run, "batchnorm": batchnorm, "kept": kept}
        self.privacy, self._report = privacy, NetworkReport(privacy, audit)
        if privacy is not None:
            self._common |= {
                "clip": privacy.clip, "noise": privacy.noise, "delta": privacy.delta
            }  # fmt: skip
        self._greeted: dict[int, float] = {}  # the time of the last greeting, by node
        self._greetings: dict[str, int] = {}  # the node that was greeted, by message
        self._expires: dict[str, float] = {}  # when the answer is no longer awaited, by message
        self._looked, self._online = -look_every, frozenset[int]()

    @property
    def sizes(self) -> Int:
        """(m,), |D_i| as clients reported it when they joined."""
        return self._roster.sizes

    @property
    def workers(self) -> int:
        """The number of workers: one for each client."""
        return len(self._roster)

    @property
    def nodes(self) -> int:
        """The number of nodes: one for each client."""
        return len(self._roster)

    def move_to(self, round: int) -> None:
        """Do nothing: the data of a real client do not depend on the round."""

    def network_report(self) -> dict[str, Any]:
        """Who joined, whose replies were refused and why, how many came late, since the last call.

        In `refused`, a client has its name, and an unknown node has its number.
        """
        return self._report.take()

    def enrol(self, min_clients: int, wait: float) -> None:
        """Wait until all places are taken; after `wait` seconds, `min_clients` are enough."""
        began, news = monotonic(), News()
        while len(self._roster.nodes) < len(self._roster):
            self._greet()
            self._pull({})
            joined = f"{len(self._roster.nodes)} of {len(self._roster)}"
            news.tell("waiting up to %g s for clients: %s joined", wait, joined)
            time_is_up = monotonic() - began > wait
            if time_is_up and len(self._roster.nodes) >= min_clients:
                break
            if time_is_up:
                raise EngineError(
                    f"{len(self._roster.nodes)} of at least {min_clients} clients joined within "
                    f"{wait:g} s ({len(self._online)} nodes are online): start more clients, or "
                    f"lower min-clients"
                )
            sleep(self._poll)
        log.info("wecfl: %d of %d clients joined", len(self._roster.nodes), len(self._roster))

    def ask(
        self, job: Job, sent: Sent, who: Int | None = None, memory: Table = NO_MEMORY
    ) -> Answers:
        """One message to each client that is online (`wecfl.core.engine.Engine`).

        A job that keeps memory is training, so it insists on a quorum. In other jobs a client that
        does not answer in time is left out.
        """
        whom = np.arange(len(self._roster)) if who is None else who
        n, packed, columns = len(whom), SharedArrays(), self.layout.columns(job.shared)
        if "models" in sent.own and job.shared != "all":
            raise ConfigError("a soft vote over a network needs all columns shared: set share=all")
        config = {**self._common, **job_config(job), "member": str(job.seed)}
        lr = np.broadcast_to(job.plan.lr, n)
        done = np.broadcast_to(ALL_STEPS if job.plan.done is None else job.plan.done, n)

        def travels(rows: NDArray[Any]) -> NDArray[Any]:
            return rows[..., columns] if rows.shape[-1] == self.layout.width else rows

        common = {name: packed(travels(rows)) for name, rows in sent.common.items()}
        contents: dict[int, RecordDict] = {}
        for j, i in enumerate(whom.tolist()):
            own = {name: packed(travels(rows[j])) for name, rows in sent.own.items()}
            client_config = {
                "lr": float(lr[j]),
                "done": int(done[j]),
                "known": job.met is not None and bool(job.met[j]),
            }
            contents[i] = request(config | client_config, own, common)
        shapes, declared = self._shapes(job, sent), job.program.replies
        kind = "train" if job.keep else "query.ask"
        answers, outcome = self._exchange(kind, job.round, contents, shapes, insist=job.keep)
        rows: dict[str, NDArray[Any]] = {
            name: np.zeros((n, *shape), dtype) for name, (dtype, shape) in shapes.items()
        }
        if job.keep and "model" in shapes:
            rows["model"] = np.asarray(sent.own["model"])
        split: Split = getattr(job.program, "split", "test")
        for j, i in enumerate(whom.tolist()):
            for name, made in answers.get(i, {}).items():
                if name == "model" and job.keep:
                    rows[name][j, columns] = made
                elif declared[name].shape == ("tally",) and (
                    why := self.task.complaint(made, self._held(i, split))
                ):
                    self._report.refuse(self._roster.names[i], f"{job.program.name}: {why}")
                    outcome[i] = Reply.MALFORMED
                else:
                    rows[name][j] = made
        return Answers(rows, np.array([outcome[i] for i in whom.tolist()], np.int8))

    def _held(self, row: int, split: Split) -> int:
        """The number of samples of a split with which a client joined; it can't count more."""
        place = self._roster.places[row]
        return place.samples if split == "train" else place.tests or 0

    def _shapes(self, job: Job, sent: Sent) -> Shapes:
        """The types and shapes of the arrays that a reply must have."""
        sizes = job.sizes(self.layout, sent, self.task.shape(self.outputs))
        sizes["P"] = len(np.arange(self.layout.width)[self.layout.columns(job.shared)])
        return {
            name: (field.dtype, field.sized(sizes)) for name, field in job.program.replies.items()
        }

    @property
    def outputs(self) -> int:
        """The number of outputs of the model."""
        return self.task.outputs

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self._roster.shape

    def starts(self, which: Sequence[int], seed: int) -> F32:
        """(n, P): number 0 is the given model, the others are drawn at random (see `Engine`)."""
        rows = [row_of(reinitialized(self._model, seed, j) if j else self._model) for j in which]
        return np.stack(rows)

    def _exchange(
        self, kind: str, round: int, contents: Contents, shapes: Shapes, *, insist: bool = False
    ) -> tuple[dict[int, dict[str, Any]], dict[int, Reply]]:
        """Ask clients and wait; the valid answers by row, and the outcome of each row."""
        answers: dict[int, dict[str, Any]] = {}
        replies = dict.fromkeys(contents, Reply.ABSENT)
        if not contents:
            return answers, replies
        for _ in range(self._tries if insist else 1):
            began, news = monotonic(), News()
            while True:
                nodes = self._reachable()
                asked = {
                    row: content
                    for row, content in contents.items()
                    if row in nodes and replies[row] in (Reply.ABSENT, Reply.LOST)
                }
                if asked or not insist or answers or monotonic() - began > self._timeout:
                    break
                news.tell("round %d waits up to %g s for a client", round + 1, self._timeout)
                self._pull({})
                sleep(self._poll)
            present = sum(row in asked or replies[row] != Reply.ABSENT for row in contents)
            need = max(self._min_clients, ceil(self._quorum * present))
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
                "asking again", round + 1, len(answers), present, need,
            )  # fmt: skip
        raise EngineError(
            f"round {round + 1} got {len(answers)} valid replies of {present} clients (tried "
            f"{self._tries} times for {self._timeout:g} s), expected at least {need}; the earlier "
            f"rounds are saved: start the run again when the clients are back"
        )

    def _collect(
        self,
        open_: dict[str, int],
        shapes: Shapes,
        need: int,
        answers: dict[int, dict[str, Any]],
        replies: dict[int, Reply],
    ) -> None:
        """Take replies until the round ends; a reply that comes after this is late."""
        began, reached, news = monotonic(), 0.0, News()
        while open_:
            for row, message in self._pull(open_):
                samples = self._roster.places[row].samples
                try:
                    if isinstance(message, Refused):
                        raise message
                    answers[row], metrics = read_arrays(message, shapes, samples)
                    replies[row] = Reply.HEARD
                    self._report.use(self._roster.names[row], message, metrics)
                except Refused as reason:
                    replies[row] = reason.kind
                    self._report.refuse(self._roster.names[row], str(reason), message)
            spent = monotonic() - began
            whose = ", ".join(self._roster.names[row] for row in [*open_.values()][:5])
            news.tell("waiting up to %g s for %d replies: %s", self._timeout, len(open_), whose)
            if len(answers) >= need and not reached:
                reached = spent
            if spent > self._timeout or (
                reached and spent > reached + max(reached, self._min_extra_wait)
            ):
                break
            if open_:
                self._greet()
                sleep(self._poll * max(1.0, len(open_) / CLIENTS_PER_POLL))
        self._expires |= dict.fromkeys(open_, monotonic() + self._timeout + GREETING_SECONDS)

    def _push(
        self, kind: str, round: int, asked: Contents, nodes: Mapping[int, int]
    ) -> dict[str, int]:
        """Send the messages; returns the row of each, by the message's number."""
        ttl = self._timeout + GREETING_SECONDS
        messages = [
            Message(
                content, dst_node_id=nodes[row], message_type=kind, group_id=str(round), ttl=ttl
            )
            for row, content in asked.items()
        ]
        numbers = list(self._grid.push_messages(messages)) if messages else []
        return {number: row for number, row in zip(numbers, asked, strict=False) if number}

    def _pull(self, open_: dict[str, int]) -> list[tuple[int, Delivery]]:
        """Take the replies to these messages out of `open_`; handle all other replies."""
        now, came = monotonic(), []
        expired = [number for number, until in self._expires.items() if until <= now]
        for number in expired:
            del self._expires[number]
            self._greetings.pop(number, None)
        self._mailbox.forget(expired)
        for number, message in self._mailbox.take([*open_, *self._expires]).items():
            if number in open_:
                came.append((open_.pop(number), message))
            elif number in self._greetings:
                self._welcome(self._greetings.pop(number), message)
            else:
                self._report.count_late()
            self._expires.pop(number, None)
        return came

    def _reachable(self) -> dict[int, int]:
        """The nodes of the clients that are online now, by row."""
        self._greet()
        return {row: node for row, node in self._roster.nodes.items() if node in self._online}

    def _greet(self) -> None:
        """Ask new nodes who they are; `_pull` gets their answers."""
        now = monotonic()
        if now - self._looked < self._look_every:
            return
        self._looked, self._online = now, frozenset(self._grid.get_node_ids())
        new = [
            node
            for node in sorted(self._online)
            if self._roster.row(node) is None
            and now - self._greeted.get(node, -GREETING_SECONDS) >= GREETING_SECONDS
        ]
        about: dict[str, Any] = {"message_type": "query.hello", "ttl": GREETING_SECONDS}
        messages = [Message(request(self._common), dst_node_id=node, **about) for node in new]
        numbers = self._grid.push_messages(messages) if messages else []
        for node, number in zip(new, numbers, strict=False):
            self._greeted[node] = now
            if number:
                self._greetings[number] = node
                self._expires[number] = now + 2 * GREETING_SECONDS

    def _welcome(self, node: int, message: Delivery) -> None:
        """Give a client its place, or record why it can't have one."""
        before = len(self._roster.places)
        try:
            if isinstance(message, Refused):
                raise message
            place = read_hello(message, node, self.layout, self.task)
            self._roster.join(place)
        except Refused as reason:
            self._report.refuse(f"node {node}", str(reason), message)
            return
        joined = len(self._roster.places) > before
        self._report.greet(place.name, message, joined=joined, samples=place.samples)
