"""The schema of `pipeline.json`, which runs on tables, pixels, texts or several arrays have."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from wecfl.folder.schema import Count, FiniteNumber, Schema

__all__ = ["PipelineSchema"]


class ColumnSchema(Schema):
    """A column of `pipeline.json`."""

    model_config = ConfigDict(extra="forbid")

    name: str
    values: Annotated[list[str], Field(min_length=1)] | None
    fill: FiniteNumber | None
    indicator: bool
    shift: FiniteNumber
    scale: Annotated[FiniteNumber, Field(gt=0)]


class PartSchema(Schema):
    """One of the arrays of which samples consist, in `pipeline.json`."""

    model_config = ConfigDict(extra="forbid")

    name: str
    shape: list[Annotated[Count, Field(ge=1)]]
    kind: Literal["number", "whole", "mask"]


class PipelineSchema(Schema):
    """`pipeline.json`, of a run on a table or on pixels."""

    columns: list[ColumnSchema]
    classes: list[str] | None
    own: dict[str, list[Annotated[list[FiniteNumber], Field(min_length=2, max_length=2)]]] | None
    scaled: Literal["none", "standard", "minmax", "pixels"]
    parts: Annotated[list[PartSchema], Field(default_factory=list)]
    targets: Annotated[list[str], Field(default_factory=list)]
    clusters: dict[str, Count] | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names) or (names and self.scaled == "pixels"):
            raise ValueError("it must have columns with different names, or be about pixels")
        numbers = sum(column.values is None for column in self.columns)
        if self.own and {*map(len, self.own.values())} != {numbers}:
            raise ValueError(f"own must hold {numbers} pairs for each client")
        if self.clusters and {*map(str, self.clusters.values())} - (self.own or {}).keys():
            raise ValueError("own must hold the scaling of each cluster")
        if any(scale <= 0 for pairs in (self.own or {}).values() for _, scale in pairs):
            raise ValueError("own must hold scales above 0")
        return self
