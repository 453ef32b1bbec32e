"""Data sets of Hugging Face and the partitioners of flwr-datasets become federations."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import wecfl
from wecfl import Federation
from wecfl.errors import DataError

pytestmark = pytest.mark.skipif(
    not (find_spec("datasets") and find_spec("flwr_datasets")), reason="an extra is not installed"
)
AGES = np.random.default_rng(0).normal(50, 10, 60)


@pytest.fixture(scope="module")
def datasets() -> Any:
    """The library, which takes a second to load."""
    return import_module("datasets")


@pytest.fixture(scope="module")
def partitioners() -> Any:
    """The partitioners of flwr-datasets, which load matplotlib."""
    return import_module("flwr_datasets.partitioner")


@pytest.fixture(scope="module")
def table(datasets: Any) -> Any:
    """Sixty people of three sites."""
    sites, sick = [f"s{i % 3}" for i in range(60)], [int(age > 50) for age in AGES]
    return datasets.Dataset.from_dict({"site": sites, "age": AGES, "sick": sick})


def with_data(partitioner: Any, data: Any) -> Any:
    partitioner.dataset = data
    return partitioner


def test_a_data_set_is_a_table(table: Any) -> None:
    fed = Federation.from_frame(table, client="site", target="sick")
    same = Federation.from_frame(table.to_pandas(), client="site", target="sick")
    assert fed.fingerprint == same.fingerprint and fed.names == ("s0", "s1", "s2")


@pytest.mark.parametrize(
    ("name", "settings", "names"),
    [
        ("NaturalIdPartitioner", {"partition_by": "site"}, ("s0", "s1", "s2")),
        ("IidPartitioner", {"num_partitions": 4}, ("0", "1", "2", "3")),
        (
            "DirichletPartitioner",
            {"num_partitions": 2, "partition_by": "sick", "alpha": 1.0, "min_partition_size": 5},
            ("0", "1"),
        ),
    ],
)
def test_partitioners_share_out_tables(
    table: Any, partitioners: Any, name: str, settings: dict[str, Any], names: tuple[str, ...]
) -> None:
    made = with_data(getattr(partitioners, name)(**settings), table)
    fed = Federation.from_partitioner(made, target="sick", features=["age"], scale="none")
    assert fed.names == names
    for i in range(len(names)):
        rows = made.load_partition(i)
        mine = np.sort(fed.x[np.concatenate([fed.train[i], fed.test[i]]), 0])
        np.testing.assert_array_equal(mine, np.sort(np.float32(rows["age"])))
    assert wecfl.run(fed, wecfl.methods.fedavg, model="logistic", rounds=1).summary["rounds"] == 1


def test_pictures(datasets: Any, partitioners: Any) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 8, 8), np.uint8)
    data = datasets.Dataset.from_dict(
        {"image": [*pixels], "label": [i % 2 for i in range(20)]},
        features=datasets.Features(
            {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
        ),
    )
    made = with_data(partitioners.IidPartitioner(num_partitions=2), data)
    fed = Federation.from_partitioner(made, target="label", feature="image", test=0)
    assert fed.shape == (1, 8, 8)
    first = np.stack([np.asarray(each) for each in made.load_partition(0)["image"]])
    np.testing.assert_allclose(fed.x[fed.train[0], 0], first / 127.5 - 1, atol=1e-6)


def test_what_is_no_partitioner(table: Any, partitioners: Any) -> None:
    with pytest.raises(DataError, match="expected a partitioner"):
        Federation.from_partitioner([table], target="sick")
    made = with_data(partitioners.IidPartitioner(num_partitions=2), table)
    with pytest.raises(DataError, match="unknown column 'agee'; did you mean 'age'"):
        Federation.from_partitioner(made, target="sick", feature="agee")
