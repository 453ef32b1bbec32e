"""Clustered federated learning: which clients learn alike, and one good model per group.

>>> import numpy as np, wecfl
>>> rng = np.random.default_rng(0)
>>> ys = [rng.integers(0, 2, 40) + 2 * (i % 2) for i in range(6)]           # two kinds of clients
>>> xs = [np.eye(4, dtype=np.float32)[y] for y in ys]
>>> fed = wecfl.Federation.from_arrays(xs, ys)
>>> result = wecfl.run(fed, wecfl.methods.wecfl(k=2), model="logistic", rounds=3, lr=0.1, seed=0)
>>> result.labels.tolist() in ([0, 1, 0, 1, 0, 1], [1, 0, 1, 0, 1, 0])
True
"""

from importlib.metadata import version
from typing import TYPE_CHECKING

from wecfl import errors, models
from wecfl._later import later
from wecfl.config import Config
from wecfl.core.engine import Engine
from wecfl.core.method import Method
from wecfl.core.plan import Correction, Plan
from wecfl.core.state import State
from wecfl.data import partition as partitions
from wecfl.data.federation import Federation
from wecfl.engine import NativeEngine, RayEngine, TorchEngine, make_engine
from wecfl.layout import Layout

if TYPE_CHECKING:
    from wecfl import methods
    from wecfl.configured import run_config
    from wecfl.experiment import run
    from wecfl.runs.result import Result
else:  # with pandas and scikit-learn, which a client, started for each message, does without
    __getattr__, __dir__ = later(
        __name__,
        {
            "Result": "wecfl.runs.result:Result",
            "methods": "wecfl.methods",
            "run": "wecfl.experiment:run",
            "run_config": "wecfl.configured:run_config",
        },
    )

__all__ = [
    "Config",
    "Correction",
    "Engine",
    "Federation",
    "Layout",
    "Method",
    "NativeEngine",
    "Plan",
    "RayEngine",
    "Result",
    "State",
    "TorchEngine",
    "errors",
    "make_engine",
    "methods",
    "models",
    "partitions",
    "run",
    "run_config",
]

__version__ = version("wecfl")
