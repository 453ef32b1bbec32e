"""Transforms: they change the samples or the targets of clients, so that clients differ.

A transform changes the samples (feature skew) or the targets (concept shift) of each client. Its
setting, such as an angle, says how. The option `by` says which clients share a setting:

- ``group`` (the default): the clients of a group, so the difference is cluster-wise;
- ``client``: none, so the difference is client-wise;
- ``cross``: the clients of new groups, which cut across the groups that the clients have.

| name | options | what it does | group g of G | a client |
|---|---|---|---|---|
| rotation | step 90 | turns images by an angle in degrees | g · step | a random multiple |
| contrast | least 0.25 | x ↦ a x; a below 0 makes a negative | a from 1 to least | random between |
| hue | step 90 | turns the three colours of images about grey | g · step | a random multiple |
| blur | width 1 | a Gaussian blur of σ pixels | σ from 0 to width | random between |
| noise | deviation 1 | adds normal noise of deviation σ | σ from 0 to deviation | random between |
| affine | spread 0.5 | x ↦ exp(u) x + v per feature or colour | u, v ~ N(0, spread²) | the same |
| permutation | | renames the classes | 0: none, others differ | random |
| swap | pairs 1 | swaps the names of pairs of classes | 0: none, others differ | random |
| concept | of sine | labels by another rule (`wecfl.data.rules`) | the g-th rule | a random one |
| sign | | y ↦ ± y, for targets that are numbers | 0: +, 1: − | random |

Pixels are in [−1, 1], so the contrast is changed around a medium grey.
"""

from __future__ import annotations

from wecfl.config.named_values import read_known
from wecfl.data.transforms.concepts import Concept, Permutation, Sign, Swap
from wecfl.data.transforms.features import Affine, Blur, Contrast, Hue, Rotation, SensorNoise
from wecfl.data.transforms.transform import By, SampleKind, Transform

__all__ = [
    "TRANSFORMS",
    "Affine",
    "Blur",
    "By",
    "Concept",
    "Contrast",
    "Hue",
    "Permutation",
    "Rotation",
    "SampleKind",
    "SensorNoise",
    "Sign",
    "Swap",
    "Transform",
    "parsed",
]

TRANSFORMS: dict[str, type[Transform]] = {
    kind.name: kind
    for kind in (
        *(Rotation, Contrast, Hue, Blur, SensorNoise, Affine),
        *(Permutation, Swap, Concept, Sign),
    )
}
"""Every transform by its name."""


def parsed(text: str) -> Transform:
    """The transform that a text names.

    >>> parsed("rotation(step=30, by=client)")
    Rotation(step=30, by='client')
    >>> parsed("rotate")
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: unknown transform 'rotate'; did you mean 'rotation'?
    """
    return read_known(text, "transform", TRANSFORMS)
