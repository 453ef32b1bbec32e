"""Exports modules to ONNX, so that they can be used without torch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from wecfl.errors import ModelError

__all__ = ["to_onnx"]


def to_onnx(module: nn.Module, shape: Sequence[int]) -> Any:
    """The module in evaluation mode as an ONNX `ModelProto`.

    It maps `samples` (n, …), each of this shape, to `logits` (n, C); n may be any number.
    """
    log = logging.getLogger("torch.onnx")
    level = log.level
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the insides of torch
            log.setLevel(logging.ERROR)  # otherwise it reports that torchvision is missing
            program = torch.onnx.export(
                module.eval(), (torch.zeros(2, *shape),), dynamo=True, verbose=False,
                input_names=["samples"], output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("n")},),
            )  # fmt: skip
    except ImportError as error:
        raise ModelError(f"ONNX needs {error.name or 'onnx'}: pip install 'wecfl[onnx]'") from None
    except torch.onnx.OnnxExporterError as error:
        reason = " ".join(str(error).split())
        raise ModelError(
            f"{type(module).__name__} can't be written as ONNX: {reason[:200]}"
        ) from None
    finally:
        log.setLevel(level)
    assert program is not None
    return program.model_proto
