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
    def train(self, rows: NDArray[np.float32], *arguments: Any) -> None: ...
    def logits(self, rows: NDArray[np.float32], *arguments: Any) -> None: ...
    def gradients(self, rows: NDArray[np.float32], *arguments: Any) -> None: ...

def instruction_sets() -> list[str]: ...
