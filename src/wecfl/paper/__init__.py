"""The paper's tables and figures: definitions, the queue of runs, and what is made of them."""

from pathlib import Path

__all__ = ["SHIPPED_FOLDER"]

SHIPPED_FOLDER = Path(__file__).parent
"""The folder of the definitions that come with the package."""
