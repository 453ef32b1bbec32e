"""What a node allows: a file at the node, which a server can't change.

::

    private = true          # updates leave this node only clipped, with noise, and counted
    min_noise = 5.0         # the least noise z, in units of the clipping length
    max_clip = 1.0          # the largest clipping length C
    max_epsilon = 8.0       # the budget of this node's data, over all runs
    max_replies = 200       # how many noisy replies may leave it, over all runs
    programs = ["train"]    # which programs may run here
    max_parameters = 100000 # the largest model
    samples = 500           # the number of samples that the server is told

The file is named by `policy` in the node's configuration; without it, `policy.toml` in the node's
`state-dir` is read if it is there. A node without a policy allows every program, and still keeps
its ledger: once it has sent a reply with noise, it sends none in the clear, and the other way
round.
"""

from __future__ import annotations

import tomllib
from math import inf
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wecfl.channel.privacy import Privacy
from wecfl.core.program import Program
from wecfl.errors import ConfigError
from wecfl.validation import one_line

__all__ = ["POLICY_FILE", "Policy"]

POLICY_FILE = "policy.toml"
"""In the `state-dir` of a node, where its configuration names no other file."""


class Policy(BaseModel):
    """The limits that a node sets to the server's requests.

    >>> from wecfl.bilevel.local import ClusterLosses, Train
    >>> policy = Policy(private=True, min_noise=5.0, programs=["train"])
    >>> policy.refusal(Train(), Privacy(clip=1.0, noise=8.0), parameters=100)
    >>> policy.refusal(Train(), Privacy(clip=1.0, noise=2.0), parameters=100)
    'the noise must be at least 5, the server asks for 2'
    >>> policy.refusal(ClusterLosses(), Privacy(clip=1.0, noise=8.0), parameters=100)
    'the program losses is not among those allowed here: train'
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    private: bool = Field(False, description="Nothing leaves that is not noised and counted.")
    min_noise: float = Field(0.0, ge=0, description="The least noise, in units of the clip.")
    max_clip: float = Field(inf, gt=0, description="The largest clipping length.")
    max_epsilon: float = Field(inf, gt=0, description="The budget ε over all runs.")
    delta: float = Field(1e-5, gt=0, lt=1, description="δ, for which ε is counted.")
    max_replies: int | None = Field(None, ge=0, description="Noisy replies over all runs.")
    programs: list[str] | None = Field(None, description="The programs that may run.")
    max_parameters: int | None = Field(None, ge=1, description="The largest model.")
    samples: int | None = Field(None, ge=1, description="The |D_i| that the server is told.")

    @classmethod
    def read(cls, node_config: Any, place: Path) -> Policy:
        """The policy of a node; `place` is its `state-dir`."""
        named = node_config.get("policy")
        path = Path(str(named)) if named else place / POLICY_FILE
        if not named and not path.is_file():
            return cls()
        try:
            return cls.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            raise ConfigError(f"{path}: {one_line(error, cls.model_fields)}") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"the policy {path} can't be read: {error}") from None

    def refusal(self, program: Program, privacy: Privacy | None, parameters: int) -> str | None:
        """Why the node does not run a program; None if it does."""
        if self.programs is not None and program.name not in self.programs:
            allowed = ", ".join(self.programs) or "none"
            return f"the program {program.name} is not among those allowed here: {allowed}"
        if self.max_parameters is not None and parameters > self.max_parameters:
            return f"a model may have at most {self.max_parameters} parameters, got {parameters}"
        if privacy is None:
            return "replies leave this node only with clip and noise" if self.private else None
        if [field.update for field in program.replies.values()] != [True]:
            return f"a reply must be one update of the model, which that of {program.name} is not"
        if privacy.noise < self.min_noise:
            least, asked = f"{self.min_noise:g}", f"{privacy.noise:g}"
            return f"the noise must be at least {least}, the server asks for {asked}"
        if self.private and privacy.noise == 0:
            return "replies leave this node only with noise, the server asks for 0"
        if privacy.clip > self.max_clip:
            return (
                f"the clip may be at most {self.max_clip:g}, the server asks for {privacy.clip:g}"
            )
        return None
