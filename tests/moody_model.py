"""A model whose training does something to its process, and a client whose samples it knows."""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor, nn

from wecfl import Federation

MARK = 99.0
"""Every number in the samples of the marked client."""


class Moody(nn.Module):
    """A linear model whose training does `mood` to it."""

    def __init__(self, mood: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.linear, self.mood = nn.Linear(6, 3), mood

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mood(x)
        out: Tensor = self.linear(x)
        return out


def with_marked_client(fed: Federation) -> Federation:
    """The same clients by the names a to e; d, the fourth, has marked samples."""
    x = fed.x.copy()
    x[fed.train[3]] = MARK
    return replace(fed, x=x, names=tuple("abcde"))


def is_marked(x: Tensor) -> bool:
    """Whether a batch has marked samples."""
    return bool(x.max() >= MARK)
