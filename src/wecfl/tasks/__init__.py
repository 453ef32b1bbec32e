"""Tasks: what is learned, and how it is judged."""

from wecfl.tasks.choice import FittedTask, described, fitted, named, parsed, register
from wecfl.tasks.classification import Classification
from wecfl.tasks.custom import Custom, Metric
from wecfl.tasks.regression import Regression
from wecfl.tasks.yes_or_no import Binary, MultiLabel

__all__ = [
    "Binary",
    "Classification",
    "Custom",
    "FittedTask",
    "Metric",
    "MultiLabel",
    "Regression",
    "described",
    "fitted",
    "named",
    "parsed",
    "register",
]
