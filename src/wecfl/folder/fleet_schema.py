"""The schemas of what run folders of fleets hold in addition to others."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from wecfl.folder.schema import AgreementScore, Count, NonNegativeNumber, Schema

__all__ = ["FleetRoundSchema", "FleetSchema"]


class FleetSchema(Schema):
    """The table `fleet` of `summary.json`."""

    registered: Count
    heard: Count
    clusters: Count
    ari: AgreementScore | None = None


class FleetClientsSchema(Schema):
    """The clients that took part in a round."""

    number: list[Count]
    cluster: list[Count]
    reply: list[Count] | None = None


class FleetRoundSchema(Schema):
    """A line of `metrics.jsonl` of a fleet (`wecfl.runs.record.FLEET_KEYS`)."""

    heard: Count
    seconds: dict[str, NonNegativeNumber]
    memory: Annotated[dict[Literal["kept", "peak"], Count], Field(min_length=2)] | None = None
    """Folders of earlier versions do not have it."""
    clients: FleetClientsSchema
