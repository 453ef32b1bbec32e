"""The pipeline as the beginning of an ONNX graph, so that a model takes tables or pixels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from wecfl.data.pipeline import Pipeline

__all__ = ["with_pipeline"]

ML_OPSET = 3
"""The version of ONNX's operators for categories."""


def with_pipeline(proto: Any, pipeline: Pipeline, shape: Sequence[int]) -> Any:
    """The graph of a model, with the pipeline before it.

    Its inputs are `numbers` (n, p) as doubles, with NaN for a missing one, and `categories` (n, q)
    as strings, both in the order of the table's columns; or `pixels` (n, …) as bytes. The metadata
    hold the names of the columns and of the classes.
    """
    import onnx  # noqa: PLC0415  (an extra)
    from onnx import helper  # noqa: PLC0415

    whole = proto if pipeline.plain else _merged(proto, pipeline, shape)
    known_names = {
        "numbers": [column.name for column in pipeline.numbers],
        "categories": [column.name for column in pipeline.categories],
        "class_names": list(pipeline.classes or ()),
        "target_names": list(pipeline.targets),
    }
    for key, names in known_names.items():
        if names:
            helper.set_model_props(whole, {**_props(whole), key: json.dumps(names)})
    onnx.checker.check_model(whole)
    return whole


def _merged(proto: Any, pipeline: Pipeline, shape: Sequence[int]) -> Any:
    from onnx import compose, helper  # noqa: PLC0415

    graph = _Graph()
    if pipeline.scaled == "pixels":
        graph.pixels(shape)
    else:
        graph.table(pipeline)
    if pipeline.categories:
        proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", ML_OPSET))
    before = helper.make_model(
        helper.make_graph(graph.nodes, "pipeline", graph.inputs, graph.outputs, graph.constants),
        opset_imports=proto.opset_import,
        ir_version=proto.ir_version,
    )
    return compose.merge_models(before, proto, io_map=[("features", "samples")])


def _props(proto: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in proto.metadata_props}


class _Graph:
    """Nodes, inputs and constants of the graph that is being made; its output is `features`."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.constants: list[Any] = []

    def _input(self, name: str, kind: str, shape: Sequence[int]) -> str:
        from onnx import TensorProto, helper  # noqa: PLC0415

        kinds = {"pixels": TensorProto.UINT8, "numbers": TensorProto.DOUBLE}
        which = kinds.get(kind, TensorProto.STRING)
        self.inputs.append(helper.make_tensor_value_info(name, which, ["n", *shape]))
        return name

    def _constant(self, values: Any) -> str:
        from onnx import numpy_helper  # noqa: PLC0415

        name = f"pipeline_constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def _node(self, kind: str, *inputs: str, out: str = "", **options: Any) -> str:
        from onnx import helper  # noqa: PLC0415

        name = out or f"pipeline_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **options))
        return name

    def _features(self, parts: Sequence[str], shape: Sequence[int]) -> None:
        from onnx import TensorProto, helper  # noqa: PLC0415

        if len(parts) == 1:
            self._node("Identity", *parts, out="features")
        else:
            self._node("Concat", *parts, out="features", axis=1)
        value = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", *shape])
        self.outputs.append(value)

    def pixels(self, shape: Sequence[int]) -> None:
        """(p/255 − 0.5)/0.5."""
        half = self._constant(np.float32(0.5))
        values = self._as_float(self._input("pixels", "pixels", shape))
        shares = self._node("Div", values, self._constant(np.float32(255)))
        self._features([self._node("Div", self._node("Sub", shares, half), half)], shape)

    def table(self, pipeline: Pipeline) -> None:
        """Numbers, indicators and categories, as `Pipeline.transform` makes them."""
        numbers, categories = pipeline.numbers, pipeline.categories
        parts = []
        if numbers:
            given = self._input("numbers", "numbers", [len(numbers)])
            missing = self._node("IsNaN", given)
            fills = [np.nan if column.fill is None else column.fill for column in numbers]
            filled = self._node("Where", missing, self._constant(np.array(fills)), given)
            pairs = np.array(pipeline.scaling(), np.float64)
            centred = self._node("Sub", filled, self._constant(pairs[:, 0]))
            parts.append(self._as_float(self._node("Div", centred, self._constant(pairs[:, 1]))))
            if indicated := [j for j, column in enumerate(numbers) if column.indicator]:
                chosen = self._node("Gather", missing, self._constant(np.array(indicated)), axis=1)
                parts.append(self._as_float(chosen))
        if categories:
            given = self._input("categories", "categories", [len(categories)])
            for j, column in enumerate(categories):
                texts = self._node("Gather", given, self._constant(np.array(j)), axis=1)
                values = [value.encode() for value in column.values or ()]
                parts.append(
                    self._node(
                        "OneHotEncoder", texts, domain="ai.onnx.ml", cats_strings=values, zeros=1
                    )
                )
        self._features(parts, [len(pipeline.features)])

    def _as_float(self, value: str) -> str:
        from onnx import TensorProto  # noqa: PLC0415

        return self._node("Cast", value, to=TensorProto.FLOAT)
