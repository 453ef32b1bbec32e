"""Enrols a client: its key at the SuperLink, its name and its size on the operator's list."""

from __future__ import annotations

from pathlib import Path

from wecfl.deploy.certificates import key_fingerprint
from wecfl.deploy.flower_programs import CONNECTION_NAME, call_flwr
from wecfl.enrolment import (
    ENROLMENT_FILE,
    MAX_NUMBER,
    MAX_SAMPLES,
    Enrolled,
    Enrolment,
    name_complaint,
    number_of,
)
from wecfl.errors import ConfigError
from wecfl.folder.files import replace_file

__all__ = ["add_to_list", "enrol", "federation_folder"]


def federation_folder(place: Path) -> Path:
    """The folder with the list: that of a host, or of an app that was started on this machine."""
    for folder in (place / ".federation", place):
        if (folder / ENROLMENT_FILE).is_file():
            return folder
    raise ConfigError(
        f"{place} has no {ENROLMENT_FILE}: give a folder that wecfl deploy host made, or an app "
        f"that wecfl deploy up started"
    )


def enrol(folder: Path, name: str, key: Path, samples: int, number: int | None = None) -> Enrolled:
    """Bind a node's public key to a client's name, which may then report up to `samples` samples.

    A key that is on the list keeps its node; only the rest of its entry changes. `number` is the
    client's number for keyed randomness, by default the one that follows from the name.
    """
    if reason := name_complaint(name):
        raise ConfigError(reason)
    if not 1 <= samples <= MAX_SAMPLES:
        raise ConfigError(f"--samples must lie between 1 and {MAX_SAMPLES}, got {samples}")
    if number is not None and not 0 <= number <= MAX_NUMBER:
        raise ConfigError(f"--number must lie between 0 and {MAX_NUMBER}, got {number}")
    enrolment, print_ = Enrolment.read(folder / ENROLMENT_FILE), key_fingerprint(key)
    known = next((each.node for each in enrolment.clients if each.key == print_), None)
    if known is None or known not in _registered(folder):
        words = ("supernode", "register", key, CONNECTION_NAME)
        known = int(call_flwr(folder / "flwr", words)["node-id"])
    number = number_of(name) if number is None else number
    client = Enrolled(name=name, node=known, key=print_, samples=samples, number=number)
    add_to_list(folder, client)
    return client


def add_to_list(folder: Path, client: Enrolled) -> None:
    """Write the list with this client on it."""
    file = folder / ENROLMENT_FILE
    replace_file(file, [Enrolment.read(file).plus(client).text.encode()])


def _registered(folder: Path) -> set[int]:
    """The numbers of the nodes that the SuperLink knows."""
    listed = call_flwr(folder / "flwr", ("supernode", "list", CONNECTION_NAME))["nodes"]
    return {int(node["node-id"]) for node in listed}
