"""The pipeline: merged statistics of clients are those of the pooled data; scikit-learn agrees."""

from __future__ import annotations

import json
import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

import wecfl
from wecfl.config import Config
from wecfl.data.federation import Federation
from wecfl.data.fitting import fit_pipeline
from wecfl.data.frames import read_frame
from wecfl.data.pipeline import Pipeline
from wecfl.data.remarks import data_remarks
from wecfl.data.statistics import ColumnMoments, medians
from wecfl.errors import ConfigError, DataError
from wecfl.from_config import federation_of


def people(n: int = 240, missing: float = 0.1, seed: int = 0) -> pd.DataFrame:
    """Numbers of very different size, with gaps, and a text; whether somebody is insured."""
    rng = np.random.default_rng(seed)
    age, income = rng.normal(50, 20, n), rng.lognormal(10, 1, n)
    frame = pd.DataFrame(
        {
            "commune": rng.choice(["Aix", "Brest", "Caen", "Dole"], n),
            "age": age,
            "income": income,
            "year": rng.integers(2000, 2020, n) + 1.6e9,
            "trade": rng.choice(["smith", "baker", "clerk"], n),
            "insured": np.where(age + rng.normal(0, 5, n) > 50, "yes", "no"),
        }
    )
    frame.loc[rng.random(n) < missing, "age"] = np.nan
    return frame


NUMBERS = ["age", "income", "year"]


@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    offset=st.sampled_from([0.0, 1e6, -1e9]),
    gaps=st.booleans(),
    seed=st.integers(0, 9),
)
def test_merged_statistics_are_those_of_the_pooled_data(
    sizes: list[int], offset: float, gaps: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    parts = [offset + rng.normal(size=(n, 3)) for n in sizes]
    if gaps:
        for part in parts:
            part[rng.random(part.shape) < 0.3] = np.nan
    pooled = np.concatenate(parts)
    whole = ColumnMoments.merged([ColumnMoments.of(part) for part in parts])
    known = ~np.isnan(pooled).all(axis=0)
    if not known.any():
        return
    scaler = StandardScaler().fit(pooled[:, known])
    np.testing.assert_allclose(whole.mean[known], scaler.mean_, rtol=1e-12)
    tolerance = 1e-12 * max(1.0, offset**2 * 1e-4)
    np.testing.assert_allclose(whole.variance[known], scaler.var_, rtol=1e-6, atol=tolerance)
    np.testing.assert_array_equal(whole.low[known], np.nanmin(pooled[:, known], axis=0))
    np.testing.assert_array_equal(whole.high[known], np.nanmax(pooled[:, known], axis=0))
    np.testing.assert_array_equal(whole.missing, np.isnan(pooled).sum(axis=0))
    found = medians(parts, whole)[known]
    width = (whole.high - whole.low)[known] / 1024
    near = [np.nanquantile(pooled[:, known], q, axis=0) for q in (0.5 - 1e-9, 0.5 + 1e-9)]
    gap = np.abs(np.diff(np.sort(pooled[:, known], axis=0), axis=0, prepend=np.nan))
    room = width + np.nan_to_num(np.nanmax(np.nan_to_num(gap), axis=0))
    assert (np.abs(found - np.mean(near, axis=0)) <= room).all()


@pytest.mark.parametrize("scale", ["standard", "minmax", "none"])
@pytest.mark.parametrize("impute", ["mean", -1.0])
def test_it_is_what_scikit_learn_makes_of_the_pooled_training_rows(scale: Any, impute: Any) -> None:
    frame = people()
    fed = Federation.from_frame(
        frame, client="commune", target="insured", scale=scale, impute=impute, seed=3
    )
    # Which rows are for training, in the order of the table.
    ordered = frame.sort_values("commune", kind="stable")
    train = ordered.iloc[np.concatenate(fed.train)]
    how = {"strategy": "mean"} if impute == "mean" else {"strategy": "constant", "fill_value": -1}
    scaler = {"standard": StandardScaler(), "minmax": MinMaxScaler(), "none": None}[scale]
    steps = [SimpleImputer(**how)] + ([scaler] if scaler else [])
    expected = ColumnTransformer(
        [
            ("numbers", make_pipeline(*steps), NUMBERS),
            ("missing", MissingIndicator(), ["age"]),
            ("texts", OneHotEncoder(sparse_output=False), ["trade"]),
        ]
    ).fit(train)
    np.testing.assert_allclose(fed.x, expected.transform(ordered), rtol=2e-6, atol=2e-6)
    assert fed.pipeline is not None
    assert fed.pipeline.features == [
        *NUMBERS, "age is missing", "trade = baker", "trade = clerk", "trade = smith"
    ]  # fmt: skip
    assert fed.y.tolist() == (ordered["insured"] == "yes").astype(int).tolist()
    assert (fed.names, fed.classes) == (("Aix", "Brest", "Caen", "Dole"), 2)


def test_each_client_by_its_own_statistics() -> None:
    frame = people(missing=0.0)
    fed = Federation.from_frame(
        frame[["commune", *NUMBERS, "insured"]], client="commune", target="insured",
        scale_by="client", test=0.25,
    )  # fmt: skip
    ordered = frame.sort_values("commune", kind="stable")[NUMBERS].to_numpy()
    for train, test in zip(fed.train, fed.test, strict=True):
        scaler = StandardScaler().fit(ordered[train])
        both = np.concatenate([train, test])
        np.testing.assert_allclose(fed.x[both], scaler.transform(ordered[both]), atol=1e-5)
    with pytest.raises(DataError, match="name of a client"):
        assert fed.pipeline is not None
        fed.pipeline.transform(frame)


@pytest.mark.parametrize("by", ["all", "client"])
def test_arrays_can_be_scaled_too(by: Any) -> None:
    rng = np.random.default_rng(0)
    xs = [rng.normal(100 * i, 1 + i, (20, 4)).astype(np.float32) for i in range(3)]
    fed = Federation.from_arrays(xs, [np.arange(20) % 2] * 3)
    scaled = fed.scaled("standard", by)
    assert fed.pipeline is None
    np.testing.assert_array_equal(scaled.y, fed.y)
    for i, rows in enumerate(fed.train):
        pooled = fed.x[rows if by == "client" else np.concatenate(fed.train)]
        expected = StandardScaler().fit(pooled).transform(fed.x[rows])
        np.testing.assert_allclose(scaled.x[rows], expected, atol=1e-4)
        assert scaled.pipeline is not None
        again = scaled.pipeline.transform(fed.x[rows], fed.names[i])
        np.testing.assert_array_equal(again, scaled.x[rows])
    with pytest.raises(DataError, match="already"):
        scaled.scaled("minmax")


def test_pixels_keep_their_bits() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 1, 3, 3), np.uint8)
    fed = Federation.from_arrays([pixels], [np.arange(12) % 2])
    wide = Federation.from_arrays([pixels.astype(np.float64)], [np.arange(12) % 2])
    for scaled in (fed.scaled("pixels"), wide.scaled("pixels")):
        assert scaled.x.tobytes() == fed.x.tobytes()
        assert scaled.pipeline is not None
        assert scaled.pipeline.transform(pixels).tobytes() == fed.x.tobytes()
        for wrong in (pixels - 0.5, pixels + 300.0, pixels.astype(str)):
            with pytest.raises(DataError, match="pixels"):
                scaled.pipeline.transform(wrong)
    shares = Federation.from_arrays([pixels / 255.0], [np.arange(12) % 2])
    with pytest.raises(DataError, match="needs pixels"):
        shares.scaled("pixels")
    with pytest.raises(DataError, match="for tables"):
        fed.scaled("standard")


def test_json_holds_it_to_the_bit() -> None:
    for by in ("all", "client"):
        fed = Federation.from_frame(
            people(), client="commune", target="insured", impute="median", scale_by=by
        )
        assert fed.pipeline is not None
        again = Pipeline.read(json.loads(json.dumps(fed.pipeline.written())))
        assert again == fed.pipeline
        rows = people(20, seed=5)
        one, two = (each.transform(rows, "Caen") for each in (again, fed.pipeline))
        assert one.tobytes() == two.tobytes()
        if by == "client":
            alone = again.of("Caen").transform(rows)
            np.testing.assert_array_equal(alone, one)


def test_what_nobody_saw_in_training() -> None:
    """A category that is new is all zeros; rows may be dicts, and other columns are ignored."""
    fed = Federation.from_frame(people(), client="commune", target="insured", impute="mean")
    assert fed.pipeline is not None
    rows = [
        {"age": None, "income": 1e4, "year": 1.6e9 + 2000, "trade": "poet", "more": 1},
        {"age": 50, "income": 1e4, "year": 1.6e9 + 2000, "trade": None, "more": 1},
    ]
    x = fed.pipeline.transform(rows)
    assert x[:, 3].tolist() == [1, 0]
    assert not x[:, 4:].any()
    assert x[0, 0] == pytest.approx(0, abs=1e-6)
    assert fed.pipeline.transform([]).shape == (0, 7)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[1, 2]], "2 values, expected 4: age, income"),
        ([{"age": 1, "income": 2}], "lacks the columns year, trade"),
        ([["old", 1, 2, "clerk"]], "column age must hold numbers"),
        ([[None, 1, 2, "clerk"]], "missing in the columns age .*sample 0"),
        ([[np.inf, 1, 2, "clerk"]], "column age holds Inf"),
    ],
)
def test_rows_that_do_not_fit(rows: Any, said: str) -> None:
    fed = Federation.from_frame(people(missing=0), client="commune", target="insured")
    assert fed.pipeline is not None
    with pytest.raises(DataError, match=said) as caught:
        fed.pipeline.transform(rows)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({}, {}, r"columns age \(\d+\).*impute='median'"),
        ({"age": "drop"}, {"client": "town"}, "client: unknown column 'town'"),
        ({"age": "drop"}, {"target": "insure"}, "did you mean 'insured'"),
        ({"age": "drop"}, {"features": ["incme"]}, "did you mean 'income'"),
        ({"age": "drop", "trade": "ids"}, {}, r"column trade has \d+ different texts"),
        ({"age": "drop", "income": "dates"}, {}, "column income holds datetime64.*features"),
        ({"age": "empty"}, {"impute": "mean"}, "column age has no value"),
        ({"commune": "gaps"}, {}, "3 values are missing in the column commune"),
        ({"age": "drop", "trade": "gaps"}, {}, r"trade \(\d+\)"),
        ({"age": "drop"}, {"group": "trade"}, "several groups"),
        ({"age": "drop"}, {"test": 1.0}, "share"),
    ],
)
def test_tables_that_can_t_be_used(
    change: dict[str, str], options: dict[str, Any], said: str
) -> None:
    frame = people(1500)
    for column, how in change.items():
        if how == "drop":
            frame = frame.drop(columns=column)
        elif how == "ids":
            frame[column] = [f"id {i}" for i in range(len(frame))]
        elif how == "dates":
            frame[column] = pd.Timestamp("2020-01-01")
        elif how == "empty":
            frame[column] = np.nan
        else:
            frame.loc[:2, column] = None
    with pytest.raises((DataError, ConfigError), match=said) as caught:
        Federation.from_frame(frame, **{"client": "commune", "target": "insured", **options})
    assert "\n" not in str(caught.value)


def test_statistics_are_not_sent_under_privacy() -> None:
    frame = people(missing=0.0)[["commune", *NUMBERS, "insured"]]
    private: dict[str, Any] = {
        "model": "logistic", "rounds": 1, "privacy": wecfl.Privacy(1.0, 0.0)
    }  # fmt: skip
    method = wecfl.methods.wecfl(k=2)
    fed = Federation.from_frame(frame, client="commune", target="insured")
    with pytest.raises(ConfigError, match=r"pipeline.*no noise"):
        wecfl.run(fed, method, **private)
    own = Federation.from_frame(frame, client="commune", target="insured", scale_by="client")
    assert wecfl.run(own, method, **private).status == "finished"


def test_features_that_are_not_scaled_are_named(caplog: pytest.LogCaptureFixture) -> None:
    frame = people(missing=0.0)
    scales: tuple[tuple[Any, bool], ...] = (("none", True), ("standard", False))
    for scale, named in scales:
        fed = Federation.from_frame(frame, client="commune", target="insured", scale=scale)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "wecfl"):
            wecfl.run(fed, wecfl.methods.fedavg, model="logistic", rounds=1, plan=wecfl.Plan(lr=0))
        assert ("age, income, year are far from 0" in caplog.text) is named


def test_a_constant_column_does_no_harm() -> None:
    parts = {"a": pd.DataFrame({"u": [0.1] * 3}), "b": pd.DataFrame({"u": [0.1] * 4})}
    for scale in ("standard", "minmax"):
        assert fit_pipeline(parts, scale=scale).transform([[0.1], [1.1]])[:, 0] == pytest.approx(
            [0, 1]
        )


def test_tables_in_files(tmp_path: Path) -> None:
    people().to_csv(tmp_path / "people.csv", index=False)
    config = Config(
        dataset=str(tmp_path / "people.csv"), client_column="commune", target="insured",
        impute="median", seed=3,
    )  # fmt: skip
    made = federation_of(config)
    same = Federation.from_frame(
        people(), client="commune", target="insured", impute="median", seed=3
    )
    np.testing.assert_allclose(made.x, same.x, rtol=1e-6, atol=1e-6)
    assert made.names == same.names


def test_parquet_needs_pyarrow(tmp_path: Path) -> None:
    file = tmp_path / "people.parquet"
    if find_spec("pyarrow") is None:
        file.write_bytes(b"PAR1")
        with pytest.raises(DataError, match="pyarrow"):
            read_frame(file)
        return
    people().to_parquet(file)
    pd.testing.assert_frame_equal(read_frame(file), people(), check_dtype=False)


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00a", b"a,b\n1,2,3\n4,5\n", b'a,"b\n1,2', b"\x00" * 50]
)
def test_files_that_hold_no_table(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "people.csv"
    file.write_bytes(content)
    with pytest.raises(DataError) as caught:
        Federation.from_frame(read_frame(file), client="commune", target="insured")
    assert "\n" not in str(caught.value)


def wards(ages: list[Any]) -> Federation:
    """Two clients whose table has these ages."""
    half = len(ages) // 2
    frame = pd.DataFrame({"ward": ["a"] * half + ["b"] * half, "sick": ["y", "n"] * half})
    frame["age"] = pd.Series(ages, dtype=object)
    return Federation.from_frame(frame, client="ward", target="sick", impute="median")


def test_objects_that_are_numbers_are_numbers() -> None:
    fed = wards([age if age % 4 else None for age in range(40)])
    assert fed.pipeline is not None
    assert fed.pipeline.features == ["age", "age is missing"]
    assert data_remarks(fed) == []


def test_texts_that_are_numbers_but_a_few_are_named() -> None:
    [line] = data_remarks(wards([str(age) if age % 4 else "?" for age in range(60)]))
    assert "age" in line
    assert "'?'" in line
    assert data_remarks(wards(["old", "young"] * 10)) == []


def test_a_number_that_no_float_holds_is_refused_in_one_line() -> None:
    with pytest.raises(DataError, match="age must hold numbers"):
        wards([10**400] * 20)
    pipeline = wards([*range(20, 40)]).pipeline
    assert pipeline is not None
    with pytest.raises(DataError, match="age must hold numbers"):
        pipeline.transform([[10**400]])
