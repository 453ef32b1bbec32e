"""The operator's list of clients: which node has which name, and how many samples it may claim.

::

    max_reply = 16000000     # the bytes of a reply that the proxy lets through

    [[clients]]
    name = "ward-7"
    node = 1234              # its number at the SuperLink, which knows it by its key
    key = "SHA256:…"         # the fingerprint of that key, as ssh-keygen -lf shows it
    samples = 5000           # the most samples it may say it has
    number = 862345745      # its number for keyed randomness

`wecfl deploy enrol` writes the list, and the server app reads it (`wecfl.flower.server`). What a
client says about itself is compared with the list. So names and weights follow from what the
operator has written, and not from what a client says first.
"""

from __future__ import annotations

import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wecfl.errors import ConfigError
from wecfl.validation import one_line

__all__ = [
    "DEFAULT_MAX_REPLY",
    "DEFAULT_MAX_SAMPLES",
    "ENROLMENT_FILE",
    "MAX_NUMBER",
    "MAX_SAMPLES",
    "Enrolled",
    "Enrolment",
    "name_complaint",
    "number_of",
]

ENROLMENT_FILE = "enrolled.toml"
"""The name of the list, in the folder of a federation or of a host."""

MAX_SAMPLES = 10**9
"""The largest number of samples that any client may have."""

DEFAULT_MAX_SAMPLES = 100_000
"""The largest number of samples that a client of a trial may say it has, by default."""

MAX_NUMBER = 2**32 - 1
"""The largest number of a client for keyed randomness: a hash of four bytes."""

MAX_NAME_CHARACTERS = 200
"""The largest number of characters in the name of a client."""

DEFAULT_MAX_REPLY = 16_000_000
"""The largest reply by default, in bytes: a model of four million parameters."""


def name_complaint(name: str) -> str | None:
    """Why a client can't have this name; None if it can.

    >>> name_complaint("ward-7"), name_complaint("")
    (None, "a name must have 1 to 200 printable characters, and no blank at its ends, got ''")
    """
    if 0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable() and name == name.strip():
        return None
    return (
        f"a name must have 1 to {MAX_NAME_CHARACTERS} printable characters, and no blank at its "
        f"ends, got {name!r}"
    )


def number_of(name: str) -> int:
    """The number for keyed randomness of a client that has no other: a hash of its name.

    >>> number_of("ward-7")
    862345745
    """
    return int.from_bytes(sha256(name.encode()).digest()[:4], "big")


class Enrolled(BaseModel):
    """A client that the operator has enrolled."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: str
    node: Annotated[int, Field(ge=0)]
    key: str
    samples: Annotated[int, Field(ge=1, le=MAX_SAMPLES)]
    number: Annotated[int, Field(ge=0, le=MAX_NUMBER)]


class Enrolment(BaseModel):
    """The list, as it is written in `enrolled.toml`.

    >>> ward = Enrolled(name="ward-7", node=12, key="SHA256:abc", samples=500, number=7)
    >>> enrolment = Enrolment().plus(ward)
    >>> enrolment.complaint("ward-7", node=12, samples=480, number=7)
    >>> enrolment.complaint("ward-7", node=12, samples=10**9, number=7)
    'ward-7 is enrolled with at most 500 samples, but says that it has 1000000000'
    >>> enrolment.complaint("ward-1", node=12, samples=480, number=7)
    'its node is enrolled as ward-7, but it says that it is ward-1'
    >>> enrolment.complaint("ward-7", node=13, samples=480, number=7)
    'its node is not enrolled'
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    max_reply: Annotated[int, Field(ge=1)] = DEFAULT_MAX_REPLY
    clients: list[Enrolled] = Field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Enrolment:
        """The list in a file; a list that can't be read is an error, not an empty list."""
        try:
            enrolment = cls.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            raise ConfigError(f"{path}: {one_line(error, None)}") from None
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the list of enrolled clients {path} can't be read: {error}"
            ) from None
        for what in ("name", "node", "key", "number"):
            held = [getattr(client, what) for client in enrolment.clients]
            twice = next((value for value in held if held.count(value) > 1), None)
            if twice is not None:
                raise ConfigError(
                    f"{path}: two clients have the {what} {twice!r}; keep one of them"
                )
        return enrolment

    @property
    def text(self) -> str:
        """The list as TOML."""
        return (
            "# The clients that may take part. wecfl deploy enrol adds clients to this list.\n"
            + tomli_w.dumps(self.model_dump())
        )

    def plus(self, client: Enrolled) -> Enrolment:
        """The list with one more client, which replaces any with the same name or key."""
        others = [
            other for other in self.clients if client.name != other.name and client.key != other.key
        ]
        return self.model_copy(update={"clients": [*others, client]})

    def complaint(self, name: str, node: int, samples: int, number: int) -> str | None:
        """What is wrong with what a client says about itself; None if nothing is."""
        found = next((client for client in self.clients if client.node == node), None)
        if found is None:
            return "its node is not enrolled"
        if found.name != name:
            return f"its node is enrolled as {found.name}, but it says that it is {name}"
        if found.number != number:
            return f"{name} is enrolled with the number {found.number}, but says {number}"
        if samples > found.samples:
            return (
                f"{name} is enrolled with at most {found.samples} samples, but says that it has "
                f"{samples}"
            )
        return None
