"""The configuration of an experiment: its choices, and how they are read from files and flags."""

from wecfl.config.choices import Config

__all__ = ["Config"]
