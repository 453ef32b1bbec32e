"""What the choice of K costs beside a round: `python benchmarks/choose_k.py [--data-dir DIR]`.

In the paper's setting on CIFAR-10 (200 clients, their last layers), in seconds of processor time of
one worker, so that other work on the machine does not count. A look includes what clients compute:
the losses on their validation samples.
"""

import argparse
import json
from time import process_time

from wecfl.config.resolve import resolve
from wecfl.core.exchange import exchange
from wecfl.core.plan import LocalPlan
from wecfl.core.rounds import distribution, expectation, maximization, opening
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.engine import make_engine
from wecfl.from_config import federation_of
from wecfl.methods import wecfl
from wecfl.models import make


def timed(step, state: State, setting: Setting, turns: int = 3) -> tuple[State, float]:
    """The state after a step, and the least processor time that it took."""
    seconds = []
    for _ in range(turns):
        began = process_time()
        after = step(state, setting)
        seconds.append(process_time() - began)
    return after, min(seconds)


def main() -> None:
    """Rounds in which K is looked for, and a round after K has settled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir")
    parser.add_argument("--dataset", default="cifar-10")
    parser.add_argument("--lr", type=float, default=0.01)
    chosen = parser.parse_args()
    config = resolve(preset="paper", flags={"dataset": chosen.dataset, "data_dir": chosen.data_dir})
    fed = federation_of(config)
    model = make("auto", shape=fed.shape, classes=fed.classes, seed=0)
    asked = []
    with make_engine("native", fed, model, workers=1) as engine:
        setting = Setting(wecfl("auto"), engine, LocalPlan(lr=chosen.lr))
        by_models = Setting(wecfl("auto", criterion="both"), engine, LocalPlan(lr=chosen.lr))
        given = Setting(wecfl(10), engine, LocalPlan(lr=chosen.lr))
        state, looks, ask = opening(setting), [], engine.ask
        while not state.notes.get("settled", [0])[0] and state.round < 5:
            state, local = timed(exchange, state, setting, turns=1)
            if state.round == 1:
                _, geometry = timed(expectation, state, by_models)
                _, plain = timed(expectation, state.grown([0] * 10), given)
                engine.ask = lambda *args: asked.append(len(args[2])) or ask(*args)
                expectation(state, setting)
                engine.ask = ask
            state, look = timed(expectation, state, setting)
            looks.append(look / local)
            state = distribution(maximization(state, setting), setting)
        state, local = timed(exchange, state, setting, turns=1)
        _, settled = timed(expectation, state, setting)
    print(json.dumps({
        "rounds": state.round - 1, "K": len(state.centers), "L": round(local, 3),
        "looks, % of L": [round(100 * look, 1) for look in looks],
        "models that a client downloads in a look": round(sum(asked) / len(fed), 1),
        "settled E, % of L": round(100 * settled / local, 2),
        "E with K = 10 given, % of L": round(100 * plain / local, 2),
        "E by the models alone, % of L": round(100 * geometry / local, 2),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
