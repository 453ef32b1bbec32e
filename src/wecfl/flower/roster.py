"""The list of a run's clients: each has a place, which it takes by name and keeps."""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from wecfl.core.clients import Clients
from wecfl.core.state import State
from wecfl.core.types import Int
from wecfl.enrolment import MAX_NUMBER, MAX_SAMPLES, Enrolment, name_complaint
from wecfl.errors import ConfigError
from wecfl.flower.messages import Refused
from wecfl.folder.files import replace_file
from wecfl.folder.parsing import read_json
from wecfl.folder.schema import RosterSchema
from wecfl.limits import check_at_least_one
from wecfl.runs.record import Record
from wecfl.runs.result import Result

__all__ = ["ROSTER_FILE", "Place", "Roster"]

ROSTER_FILE = "roster.json"
"""In the run folder: the name of the run, as clients know it, and its clients."""

FREE_PLACE_NAME = "place {}"
"""The name of a place that nobody has taken."""


@dataclass(frozen=True, slots=True)
class Place:
    """A client as it was when it joined; nothing of it changes later."""

    name: str
    node: int
    """Flower's number for the client's node; a node with a registered key keeps its number."""
    key: int
    """The client's number for keyed randomness."""
    samples: int
    """|D_i|, the number of its training samples."""
    tests: int | None = 0
    """The number of its test samples; None in the roster of a run of an earlier version."""
    shape: tuple[int, ...] | None = ()
    """The shape of its samples; None as for `tests`."""


class Roster:
    """m places for clients that join by name (a `wecfl.core.clients.Clients`).

    A place that is still free stands for a client that never sent anything, and has no effect. With
    `pinned`, a name belongs to the node that joined with it. Otherwise it belongs to the node that
    used it last, which is meant for trials without node keys. With `enrolment`, only the clients on
    the operator's list may join, under the names that they have there.

    >>> roster = Roster(2)
    >>> roster.join(Place("ward-1", node=7, key=0, samples=30))
    0
    >>> roster.names, roster.sizes.tolist(), roster.row(7)
    (('ward-1', 'place 1'), [30, 1], 0)
    >>> roster.join(Place("ward-1", node=8, key=0, samples=30))
    Traceback (most recent call last):
    ...
    wecfl.flower.messages.Refused: the name ward-1 belongs to another node (for trials without \
node keys: pin-nodes = false)
    """

    def __init__(
        self,
        m: int,
        *,
        classes: int = 2,
        shape: tuple[int, ...] = (),
        pinned: bool = True,
        enrolment: Enrolment | None = None,
    ) -> None:
        check_at_least_one(clients=m)
        self._m, self.classes, self.shape, self._pinned = m, classes, shape, pinned
        self._enrolment = enrolment
        self.run = secrets.token_hex(8)
        self.places: list[Place] = []
        self._nodes: dict[int, int] = {}
        """The row of each node that joined since the server started."""
        self._changed = False

    @classmethod
    def read(cls, folder: Path, m: int, **options: Any) -> Roster:
        """The roster of a run that is resumed."""
        written = read_json(folder / ROSTER_FILE, RosterSchema)
        if written["clients"] != m:
            raise ConfigError(
                f"{folder} was begun with clients = {written['clients']} and can't continue with "
                f"clients = {m}"
            )
        roster = cls(m, **options)
        roster.run, roster.shape = written["run"], tuple(written.get("shape", ()))
        for place in written["places"]:
            about = {field.name: place.get(field.name) for field in fields(Place)}
            shape = about["shape"]
            about["shape"] = None if shape is None else tuple(shape)
            roster.places.append(Place(**about))
        return roster

    def join(self, place: Place) -> int:
        """Return the row of a client, old or new; raise `Refused` if it can't have one."""
        _check(place)
        if self._enrolment and (
            reason := self._enrolment.complaint(place.name, place.node, place.samples, place.key)
        ):
            raise Refused(reason)
        row = next((i for i, known in enumerate(self.places) if known.name == place.name), None)
        if row is None:
            if len(self.places) == self._m:
                raise Refused(f"all {self._m} places are taken: raise clients")
            if any(known.key == place.key for known in self.places):
                raise Refused(f"the key {place.key} (partition-id) belongs to another client")
            row = len(self.places)
            self.places.append(place)
            self._changed = True
        known = self.places[row]
        if self._pinned and known.node != place.node:
            raise Refused(
                f"the name {place.name} belongs to another node (for trials without node keys: "
                f"pin-nodes = false)"
            )
        if known.tests is None or known.shape is None:
            tests = place.tests if known.tests is None else known.tests
            known = self.places[row] = replace(known, tests=tests, shape=place.shape)
            self._changed = True
        about, before = (
            f"{each.samples} samples of shape {each.shape} and {each.tests} for tests (key "
            f"{each.key})"
            for each in (place, known)
        )
        if about != before:
            raise Refused(f"{place.name} joined with {before}, but now has {about}")
        self._nodes = {node: i for node, i in self._nodes.items() if i != row} | {place.node: row}
        return row

    def sort(self) -> None:
        """Sort the places by key before the first round: the order of joining has no effect.

        The shape of samples is the one that most clients report, so that no single client decides.
        """
        self.places.sort(key=lambda place: place.key)
        if not self.shape and self.places:
            self.shape = Counter(place.shape or () for place in self.places).most_common(1)[0][0]
        rows = {place.name: i for i, place in enumerate(self.places)}
        nodes = {place.node: rows[place.name] for place in self.places if place.node in self._nodes}
        self._nodes = nodes

    def row(self, node: int) -> int | None:
        """The row of the client at this node, if it has joined."""
        return self._nodes.get(node)

    @property
    def nodes(self) -> Mapping[int, int]:
        """The node of each client that joined since the server started, by row."""
        return {row: node for node, row in self._nodes.items()}

    def __len__(self) -> int:
        return self._m

    @property
    def names(self) -> Sequence[str]:
        """(m,), the names that clients gave; "place i" where nobody has joined."""
        return tuple(
            self.places[i].name if i < len(self.places) else FREE_PLACE_NAME.format(i)
            for i in range(self._m)
        )

    @property
    def keys(self) -> Int:
        """(m,), for keyed randomness; free places get keys above all that are taken."""
        taken = [place.key for place in self.places]
        first = max(taken, default=-1) + 1
        return np.array([*taken, *range(first, first + self._m - len(taken))], np.int64)

    @property
    def sizes(self) -> Int:
        """(m,), |D_i|; 1 for a free place."""
        taken = [place.samples for place in self.places]
        return np.array(taken + [1] * (self._m - len(taken)), np.int64)

    @property
    def groups(self) -> None:
        """None, because the groups are unknown: the run is to find them."""

    @property
    def held(self) -> None:
        """None, because clients do not report which classes they hold."""

    @property
    def fingerprint(self) -> str:
        """Identifies the run that the clients joined."""
        return sha256(self.run.encode()).hexdigest()


def _check(place: Place) -> None:
    """Refuse values that no client can have."""
    for what, value, least, most in (
        ("samples", place.samples, 1, MAX_SAMPLES),
        ("tests", place.tests or 0, 0, MAX_SAMPLES),
        ("key", place.key, 0, MAX_NUMBER),
    ):
        if not least <= value <= most:
            raise Refused(f"{what} must lie between {least} and {most}, got {value}")
    if reason := name_complaint(place.name):
        raise Refused(reason)
    if re.fullmatch(FREE_PLACE_NAME.format("[0-9]+"), place.name):
        raise Refused(f"a client can't have the name of a free place, got {place.name}")


@dataclass(frozen=True, slots=True)
class RosterWriter:
    """A `Watcher` that writes the roster into the run folder when clients have joined."""

    roster: Roster
    folder: Path

    def begin(self, config: Mapping[str, Any], env: Mapping[str, Any], clients: Clients) -> None:
        """Write the roster, because the run folder exists now."""
        self._write()

    def round(self, record: Record, states: Sequence[State]) -> None:
        """Write the roster again if a client has joined."""
        if self.roster._changed:
            self._write()

    def end(self, result: Result) -> None:
        """Do nothing."""

    def _write(self) -> None:
        roster = self.roster
        places = [asdict(place) for place in roster.places]
        written = {
            "run": roster.run, "clients": len(roster), "shape": roster.shape, "places": places
        }  # fmt: skip
        text = json.dumps(written, indent=2) + "\n"
        replace_file(self.folder / ROSTER_FILE, [text.encode()])
        roster._changed = False
