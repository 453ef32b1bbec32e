"""What the choice of K costs beside a round: `python benchmarks/choose_k.py [--data-dir DIR]`.

In the paper's setting on CIFAR-10 (200 clients, their last layers), in seconds of processor time of
one worker, so that other work on the machine does not count.
"""

import argparse
import json
from time import process_time

import numpy as np

from wecfl.bilevel.auto import Curve
from wecfl.bilevel.threads import one_thread
from wecfl.core.exchange import exchange
from wecfl.core.plan import LocalPlan
from wecfl.core.rounds import expectation, opening
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.engine import make_engine
from wecfl.from_config import federation_of
from wecfl.methods import wecfl
from wecfl.models import make
from wecfl.resolve import resolve


def timed(step, state: State, setting: Setting) -> tuple[State, float]:
    """The state after a step, and the processor time it took."""
    began = process_time()
    after = step(state, setting)
    return after, process_time() - began


def main() -> None:
    """One round, with K given and with K chosen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir")
    parser.add_argument("--dataset", default="cifar-10")
    chosen = parser.parse_args()
    config = resolve(preset="paper", flags={"dataset": chosen.dataset, "data_dir": chosen.data_dir})
    fed = federation_of(config)
    model = make("auto", shape=fed.shape, classes=fed.classes, seed=0)
    with make_engine("native", fed, model, workers=1) as engine:
        given, auto = (Setting(wecfl(k), engine, LocalPlan()) for k in (10, "auto"))
        state, local = timed(exchange, opening(auto), auto)
        points = auto.method.representation.clients(state, engine, 0).astype(np.float64)
        spent = {}
        for name, setting, start in (
            ("E, K = 10 given", given, state.replace(centers=np.repeat(state.centers, 10, axis=0))),
            ("E, K chosen", auto, state),
        ):
            spent[name] = min(timed(expectation, start, setting)[1] for _ in range(5))
        began = process_time()
        with one_thread():
            Curve.of(points, fed.sizes.astype(np.float64))
        curve = process_time() - began
    print(json.dumps({
        "L": round(local, 3), **{name: round(value, 4) for name, value in spent.items()},
        "curve over K": round(curve, 4), "curve, % of L": round(100 * curve / local, 2),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
