"""SCAFFOLD as here and as in Flower's NIID-Bench: `python benchmarks/niid_scaffold.py`.

Ten clients with 800 images of MNIST each (Dirichlet 0.5), LeNet, 10 epochs of batches of 64, 10
rounds, seed 0. Theirs adds −η·(c − c_i) beside the momentum buffer. Inside it an offset grows
tenfold, so a tenth of it is put there. `docs/evidence/niid-bench.md` has the accuracies.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wecfl import Federation, Measure, Plan, methods, run
from wecfl.bilevel import control_variates
from wecfl.config import Config
from wecfl.core.ask import Ask
from wecfl.core.method import Method
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import Table
from wecfl.from_config import federation_of

MOMENTUM, BATCH = 0.9, 64


def theirs(counts: int) -> Method:
    """Flower's SCAFFOLD; `counts` is 1 if K counts batches, and 64 if it counts samples."""

    def send(state: State, setting: Setting) -> Table:
        offset = control_variates.offset(state, setting)
        return {name: rows * np.float32(1 - MOMENTUM) for name, rows in offset.items()}

    def learn(before: State, after: State, sent: Table, setting: Setting) -> State:
        whole = {name: rows / np.float32(1 - MOMENTUM) for name, rows in sent.items()}
        done = np.asarray(setting.plan.done) * counts
        plan = replace(setting.plan, done=done)
        return control_variates.learn(before, after, whole, replace(setting, plan=plan))

    return methods.fedavg.replace(name="theirs", steps=(Ask(send=send, learn=learn), *"EMD"))


def accuracies(fed: Federation, method: Method, lr: float, momentum: float) -> list[float]:
    """The accuracy on the common test set, round by round."""
    plan = Plan(
        lr=lr, momentum=momentum, keep_momentum=False, epochs=10, batch=BATCH, weight_decay=1e-5
    )
    measure = Measure(objectives=False)
    result = run(fed, method, model="lenet", rounds=10, plan=plan, measure=measure)
    return [record["accuracy"] for record in result.records]


def main() -> None:
    """Print the accuracies of all variants, with both scales of pixels."""
    config = Config(
        dataset="mnist", partition="clientwise-dirichlet", alpha=[0.5], clients=10,
        test_set="common", samples=800, method="fedavg",
    )  # fmt: skip
    signed = federation_of(config)
    plain = replace(signed, x=((signed.x + 1) / 2).astype(np.float32))
    variants = {
        "ours, rate 0.1": (methods.scaffold(), 0.1, 0.0),
        "ours, rate 0.03": (methods.scaffold(), 0.03, 0.0),
        "theirs, batches": (theirs(1), 0.01, MOMENTUM),
        "theirs, samples": (theirs(BATCH), 0.01, MOMENTUM),
        "FedAvg": (methods.fedavg, 0.01, MOMENTUM),
    }
    for pixels, fed in (("[0, 1]", plain), ("[−1, 1]", signed)):
        for name, chosen in variants.items():
            found = accuracies(fed, *chosen)
            print(pixels, name, " ".join(f"{100 * each:.1f}" for each in found), flush=True)


if __name__ == "__main__":
    main()
