"""Exports modules to ONNX, so that they can be used without torch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from inspect import signature
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn

from wecfl.data.packing import Part
from wecfl.errors import ModelError
from wecfl.models.unpacking import typed

__all__ = ["to_onnx"]


def to_onnx(module: nn.Module, shape: Sequence[int], parts: Sequence[Part] = ()) -> Any:
    """The module in evaluation mode as an ONNX `ModelProto`.

    It maps `samples` (n, …), each of this shape, to `logits` (n, C), for any n. If samples consist
    of `parts`, the graph has an input for each part, with the name that it has in `forward`: whole
    numbers as int64, truth values and masks as bool.
    """
    inputs = _inputs(module, shape, parts)
    before = logging.root.manager.disable
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")  # about the insides of torch
            logging.disable(logging.CRITICAL)  # such as reports that torchvision is missing
            program = torch.onnx.export(
                module.eval(), tuple(inputs.values()), dynamo=True, verbose=False,
                input_names=list(inputs), output_names=["logits"],
                dynamic_shapes=tuple({0: torch.export.Dim("n")} for _ in inputs),
            )  # fmt: skip
    except ImportError as error:
        raise ModelError(f"ONNX needs {error.name or 'onnx'}: pip install 'wecfl[onnx]'") from None
    except torch.onnx.OnnxExporterError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # the first one only lists the steps of an export
            cause = cause.__cause__
        reason = " ".join(f"{type(cause).__name__}: {cause}".split())
        raise ModelError(
            f"{type(module).__name__} can't be written as ONNX: {reason[:200]}"
        ) from None
    finally:
        logging.disable(before)
    assert program is not None
    return program.model_proto


def _inputs(module: nn.Module, shape: Sequence[int], parts: Sequence[Part]) -> dict[str, Tensor]:
    """Two samples of zeros, by the names and in the order in which `forward` takes them."""
    if len(parts) < 2:
        samples = torch.zeros(2, *shape)
        return {"samples": typed(samples, parts[0]) if parts else samples}
    taken = [*signature(module.forward).parameters]
    named = {part.name or (*taken, *map(str, range(9)))[i]: part for i, part in enumerate(parts)}
    if not named.keys() <= {*taken}:
        raise ModelError(
            f"{type(module).__name__} can't be written as ONNX: its forward must have a parameter "
            f"for each of the {len(parts)} inputs, got {', '.join(taken)}"
        )
    return {
        name: typed(torch.zeros(2, *named[name].shape), named[name])
        for name in sorted(named, key=taken.index)
    }
