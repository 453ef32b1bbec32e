from typing import Any

import numpy as np
from numpy.typing import NDArray

class Layer:
    def __init__(self, kind: str, *, place: str = "", **options: Any) -> None: ...

class Optimizer:
    def __init__(self, name: str, stops: list[int], **numbers: float) -> None: ...

class Runner:
    isa: str
    def __init__(
        self,
        layers: list[Layer],
        shape: list[int],
        classes: int,
        trainable: int,
        width: int,
        isa: str = "",
        loss: str = "cross-entropy",
        weights: list[float] = ...,
        smoothing: float = 0.0,
    ) -> None: ...
    def train(
        self,
        rows: NDArray[np.float32],
        buffers: NDArray[np.float32] | None,
        anchor: NDArray[np.float32] | None,
        offset: NDArray[np.float32] | None,
        mu: NDArray[np.float32] | None,
        free: NDArray[np.bool_] | None,
        lr: NDArray[np.float32],
        optimizer: Optimizer,
        x: NDArray[np.float32],
        y: NDArray[Any],
        clients: NDArray[np.int64],
        index: NDArray[np.int64],
        offsets: NDArray[np.int64],
        keys: NDArray[np.uint64],
        threads: int,
        weights: NDArray[np.float32] | None = None,
        bias: NDArray[np.float32] | None = None,
    ) -> None: ...
    def logits(
        self,
        rows: NDArray[np.float32],
        which: NDArray[np.int64],
        x: NDArray[np.float32],
        index: NDArray[np.int64],
        offsets: NDArray[np.int64],
        out: NDArray[np.float32],
        mode: str,
        batch: int,
        threads: int,
    ) -> None: ...
    def gradients(
        self,
        rows: NDArray[np.float32],
        which: NDArray[np.int64],
        x: NDArray[np.float32],
        y: NDArray[Any],
        index: NDArray[np.int64],
        offsets: NDArray[np.int64],
        out: NDArray[np.float32],
        mode: str,
        batch: int,
        threads: int,
    ) -> None: ...

def instruction_sets() -> list[str]: ...
