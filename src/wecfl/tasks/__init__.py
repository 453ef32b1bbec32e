"""Tasks: what is learned, and how it is judged."""

from wecfl.tasks.classification import Classification

__all__ = ["Classification"]
