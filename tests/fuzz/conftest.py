"""What all fuzz tests share."""

from collections.abc import Iterator

import pytest
from altair.utils.schemapi import debug_mode


@pytest.fixture(autouse=True)
def unchecked_charts() -> Iterator[None]:
    """Altair checks each part of a chart against its schema, which is most of a page's time."""
    with debug_mode(False):
        yield
