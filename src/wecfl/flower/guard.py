"""What leaves a client: every reply must pass the client's guard.

A request is identified by a hash of all its content. If the guard has answered the same request
before, it sends the stored reply again, which costs no privacy. To any other request a reply leaves
only if the node's policy and budget allow it. The guard draws new noise for it, from the operating
system, and writes the reply to the ledger before it leaves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wecfl.channel.privacy import Privacy, system_normals
from wecfl.core.program import Job, Sent
from wecfl.errors import WecflError
from wecfl.flower.ledger import LEDGER_FILE, Ledger, Spent, append_line
from wecfl.flower.policy import Policy
from wecfl.folder.files import replace_tensors
from wecfl.folder.parsing import read_tensors

__all__ = ["AUDIT_FILE", "Guard", "PolicyRefusal", "Released", "request_hash"]

AUDIT_FILE = "audit.jsonl"
"""At the node: one line for each message, what was asked and what left."""

REPLIES_KEPT = 16
"""How many noisy replies are kept to be sent again."""

Released = tuple[dict[str, NDArray[Any]], dict[str, float]]
"""The arrays of a reply, and the numbers that go with it."""


class PolicyRefusal(WecflError):  # noqa: N818
    """The node does not answer; the reason is for the server to read."""


class Guard:
    """Decides what leaves one client, and records it.

    `place` is the client's own folder. The replies that are kept, the ledger and the audit log are
    in it.
    """

    def __init__(self, place: Path, policy: Policy) -> None:
        self._place, self._policy = place, policy
        self._ledger = Ledger(place / LEDGER_FILE)

    def is_private(self, config: Mapping[str, Any]) -> bool:
        """Whether nothing may leave in the clear: by the policy, this run, or earlier replies."""
        return self._policy.private or "clip" in config or self._ledger.read().replies > 0

    def told_samples(self, config: Mapping[str, Any], held: int) -> int:
        """The number of samples |D_i| that this node reports to the server.

        In private, the number is the one that the operator has declared, or 1: how many samples a
        client holds is a fact about its data.
        """
        if self._policy.samples is not None:
            return self._policy.samples
        return 1 if self.is_private(config) else held

    def told_tests(self, config: Mapping[str, Any], held: int) -> int:
        """The number of test samples that the server is told; 0, and no test, if private."""
        return 0 if self.is_private(config) else held

    def answer(
        self,
        job: Job,
        config: Mapping[str, Any],
        sent: Sent,
        run: Callable[[], dict[str, NDArray[Any]]],
        parameters: int,
    ) -> Released:
        """The stored reply to a request, or a new one that `run` makes."""
        privacy, key = privacy_of(config, self._policy.delta), request_hash(config, sent)
        if privacy is not None and (kept := self._kept(key)) is not None:
            self.audit(job, key, "resent", _bytes(kept))
            return kept, self._numbers(self._ledger.read(), privacy)
        reason = self._policy.refusal(job.program, privacy, parameters)
        reason = reason or self._overspent(self._ledger.read(), privacy)
        if reason:
            self.audit(job, key, "refused", 0, reason=reason)
            raise PolicyRefusal(reason)
        reply = run()
        if privacy is not None:
            start = sent.own["model"]
            reply = {
                name: privacy.protected(start, rows, system_normals) for name, rows in reply.items()
            }
        noise = None if privacy is None else privacy.noise
        about = {"run": str(config["run"]), "round": job.round, "program": job.program.name}
        with self._ledger.open() as (spent, record):
            if reason := self._overspent(spent, privacy):  # another process may have been faster
                self.audit(job, key, "refused", 0, reason=reason)
                raise PolicyRefusal(reason)
            record(noise, {**about, "request": key})
        if privacy is not None:
            self._keep(key, reply)
        self.audit(job, key, "sent", _bytes(reply))
        return reply, self._numbers(spent.plus(noise), privacy)

    def audit(self, job: Job | None, key: str, answer: str, size: int, **more: Any) -> None:
        """One line about a message: when, what was asked, what left, how many bytes, ε so far."""
        spent = self._ledger.read()
        epsilon = spent.epsilon(self._policy.delta) if spent.replies and not spent.clear else None
        about = {} if job is None else {"program": job.program.name, "round": job.round}
        line = {**about, "request": key[:16], "answer": answer, "bytes": size, **more}
        finite = None if epsilon is None or epsilon == float("inf") else epsilon
        append_line(self._place / AUDIT_FILE, {**line, "epsilon": finite})

    def _overspent(self, spent: Spent, privacy: Privacy | None) -> str | None:
        """Why one more reply would break the limits; None if it would not."""
        if privacy is None:
            return (
                f"{spent.replies} noisy replies have left this node, so none leaves it in the clear"
                if spent.replies
                else None
            )
        if spent.clear:
            return (
                f"{spent.clear} replies have left this node in the clear, so noise would protect "
                f"nothing: if its data are new, begin a new {LEDGER_FILE}"
            )
        most = self._policy.max_replies
        if most is not None and spent.replies >= most:
            return f"all {most} replies of its budget have left this node"
        after = spent.plus(privacy.noise).epsilon(self._policy.delta)
        if after > self._policy.max_epsilon:
            return (
                f"one more reply would spend ε = {after:.3g} of a budget of "
                f"{self._policy.max_epsilon:g}"
            )
        return None

    def _numbers(self, spent: Spent, privacy: Privacy | None) -> dict[str, float]:
        if privacy is None:
            return {}
        epsilon = spent.epsilon(privacy.delta)
        return {"released": spent.replies, **({"epsilon": epsilon} if np.isfinite(epsilon) else {})}

    def _kept(self, key: str) -> dict[str, NDArray[Any]] | None:
        file = self._place / "replies" / f"{key}.safetensors"
        return read_tensors(file) if file.is_file() else None

    def _keep(self, key: str, reply: Mapping[str, NDArray[Any]]) -> None:
        folder = self._place / "replies"
        folder.mkdir(parents=True, exist_ok=True)
        replace_tensors(folder / f"{key}.safetensors", dict(reply))
        stored = sorted(folder.glob("*.safetensors"), key=lambda file: file.stat().st_mtime_ns)
        for file in stored[:-REPLIES_KEPT]:
            file.unlink(missing_ok=True)


def privacy_of(config: Mapping[str, Any], delta: float) -> Privacy | None:
    """The protection that a request asks for, which an update gets before it leaves."""
    if "clip" not in config:
        return None
    delta = float(config.get("delta", delta))
    return Privacy(float(config["clip"]), float(config.get("noise", 0.0)), delta)


def request_hash(config: Mapping[str, Any], sent: Sent) -> str:
    """A hash of everything in a request; different requests have different hashes.

    >>> model = np.zeros(2, np.float32)
    >>> one, two = ({"lr": lr, "round": 1} for lr in (0.0, 0.05))
    >>> request_hash(one, Sent({"model": model})) == request_hash(two, Sent({"model": model}))
    False
    """
    digest = sha256(json.dumps(dict(config), sort_keys=True, default=repr).encode())
    for owner, part in (("own", sent.own), ("common", sent.common)):
        for name, array in sorted(part.items()):
            digest.update(f"{owner} {name!r} {array.dtype} {array.shape};".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _bytes(reply: Mapping[str, NDArray[Any]]) -> int:
    return sum(array.nbytes for array in reply.values())
