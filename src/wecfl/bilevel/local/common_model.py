"""The common part of programs that train two models: the cluster's, and one for all clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wecfl.bilevel.local.training import MODEL_REPLY, momentum_field
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Field, FitsAny

__all__ = ["BesideCommonModel"]


class BesideCommonModel(FitsAny):
    """A program that trains two models: the cluster's, and one that is common to all clients.

    >>> list(BesideCommonModel.replies)
    ['model', 'common']
    """

    __slots__ = ()
    replies: ClassVar[Mapping[str, Field]] = {**MODEL_REPLY, "common": Field(("P",))}

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """A momentum buffer for each of the two models."""
        return {**momentum_field(plan), **momentum_field(plan, "common_momentum")}
