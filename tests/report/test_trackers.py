"""What trackers write, read back with each tool's own reader."""

import socket
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from helpers import run_flat
from wecfl import Federation, Result, cli, methods
from wecfl.errors import ConfigError, TrackError
from wecfl.folder.readers import read_metrics
from wecfl.report.trackers import MLflow, TensorBoard, numbers

QUICK: dict[str, Any] = {"model": "logistic", "steps": 3, "batch": 4, "lr": 0.05, "workers": 1}
PNG = b"\x89PNG"
# What the tools' own code warns about is theirs.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def no_network() -> Iterator[None]:
    """Nothing may leave the machine, telemetry least of all."""

    def refuse(self: socket.socket, address: object) -> None:
        raise AssertionError(f"a connection to {address}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """MLflow with a SQLite store of its own."""
    place = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}/mlflow.db")
        patch.chdir(place)  # where it puts artifacts
        MLflow(place)  # imports it with its telemetry off
        yield import_module("mlflow")


@pytest.fixture(scope="module")
def tracked(store: Any, fed: Federation, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run of three rounds, watched by both."""
    path = tmp_path_factory.mktemp("runs") / "mine"
    return run_flat(
        fed, methods.wecfl(k=2), rounds=3, out=path, watch=[TensorBoard(path), MLflow(path)],
        **QUICK,
    )  # fmt: skip


def events(folder: Path) -> Any:
    module = import_module("tensorboard.backend.event_processing.event_accumulator")
    everything = {"histograms": 0, "images": 0, "scalars": 0}
    return module.EventAccumulator(str(folder / "tensorboard"), everything).Reload()


def test_tensorboard_holds_every_number_of_every_round(tracked: Result) -> None:
    assert tracked.folder
    read = events(tracked.folder)
    for record in read_metrics(tracked.folder):
        for name, value in numbers(record).items():
            [found] = [e.value for e in read.Scalars(name) if e.step == record["round"]]
            assert found == pytest.approx(value, rel=1e-6)
    assert {"accuracy", "ari", "sizes/0", "sizes/1", "F/E", "R_estimate/D", "seconds/L"} <= set(
        read.Tags()["scalars"]
    )
    [accuracy] = [e.value for e in read.Scalars("summary/accuracy")]
    assert accuracy == pytest.approx(tracked.summary["accuracy"], rel=1e-6)


def test_tensorboard_holds_configuration_models_and_figure(tracked: Result) -> None:
    assert tracked.folder
    read = events(tracked.folder)
    text = read.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert (tracked.folder / "config.toml").read_text(encoding="utf-8") in text
    for name, tensor in load_file(tracked.folder / "models.safetensors").items():
        [model] = read.Histograms(f"models/{name}")
        assert model.step == 3
        assert model.histogram_value.num == tensor.size
        assert model.histogram_value.sum == pytest.approx(float(tensor.sum()), rel=1e-4, abs=1e-5)
    [picture] = read.Images("overview")
    assert picture.encoded_image_string.startswith(PNG)
    assert picture.width > 500
    assert [e.histogram_value.num for e in read.Histograms("clients/accuracy")] == [5, 5, 5]
    assert "_hparams_/session_start_info" in read.summary_metadata


def test_tensorboard_leaves_out_what_is_not_known_of_a_client(
    fed: Federation, tmp_path: Path
) -> None:
    """IFCA has no learning-rate bound: its clients are not compared by their models."""
    path = tmp_path / "mine"
    run_flat(
        fed, methods.ifca(k=2), rounds=1, out=path, diagnostics=True, watch=[TensorBoard(path)],
        **QUICK,
    )  # fmt: skip
    [record] = read_metrics(path)
    read = events(path)
    known = {name: values for name, values in record["clients"].items() if values is not None}
    assert "lr_bound_1" not in known
    assert {f"clients/{name}" for name in known} <= set(read.Tags()["histograms"])
    assert "clients/lr_bound_1" not in read.Tags()["histograms"]


def run_of(store: Any, folder: Path) -> Any:
    [run] = store.search_runs(
        search_all_experiments=True, filter_string=f"attributes.run_name = '{folder}'",
        output_format="list",
    )  # fmt: skip
    return run


def test_mlflow_holds_every_number_of_every_round(store: Any, tracked: Result) -> None:
    assert tracked.folder
    run = run_of(store, tracked.folder)
    client = store.MlflowClient()
    records = read_metrics(tracked.folder)
    for name in numbers(records[0]):
        history = client.get_metric_history(run.info.run_id, name)
        assert [(each.step, each.value) for each in history] == [
            (record["round"], pytest.approx(numbers(record)[name])) for record in records
        ]
    assert run.data.metrics["summary/accuracy"] == pytest.approx(tracked.summary["accuracy"])


def test_mlflow_holds_configuration_models_and_figure(
    store: Any, tracked: Result, tmp_path: Path
) -> None:
    assert tracked.folder
    run = run_of(store, tracked.folder)
    assert run.info.status == "FINISHED"
    assert run.data.params["method"] == "wecfl"
    assert run.data.params["clusters"] == "2"
    assert run.data.params["plan/lr"] == "0.05"
    assert run.data.tags["engine"] == tracked.engine
    place = Path(store.artifacts.download_artifacts(run_id=run.info.run_id, dst_path=str(tmp_path)))
    models = load_file(place / "models.safetensors")
    assert models.keys() == tracked.tensors.keys()
    assert all(np.array_equal(models[name], tensor) for name, tensor in tracked.tensors.items())
    assert (place / "overview.png").read_bytes().startswith(PNG)
    assert read_metrics(place) == tracked.records
    assert not list(place.glob("state*"))


def test_the_command_tracks_each_of_several_methods(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys, "argv",
        ["wecfl", "run", "--method", "fedavg,wecfl", "--clients", "6", "--groups", "2", "--rounds",
         "1", "--clusters", "2", "--model", "logistic", "--workers", "1",
         "--out", str(tmp_path / "run"), "--track", "tensorboard", "--track", "mlflow"],
    )  # fmt: skip
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    for name in ("fedavg", "wecfl"):
        run = run_of(store, tmp_path / "run" / name)
        assert run.data.params["method"] == name
        assert run.data.params["alpha/1"] == "10.0"
        [accuracy] = events(tmp_path / "run" / name).Scalars("accuracy")
        assert run.data.metrics["accuracy"] == pytest.approx(accuracy.value, rel=1e-6)


def test_a_stopped_run_is_marked_as_such(store: Any, fed: Federation, tmp_path: Path) -> None:
    def stop(record: object, states: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run_flat(
            fed,
            methods.wecfl(k=2),
            out=path,
            watch=[TensorBoard(path), MLflow(path), stop],
            **QUICK,
        )
    assert run_of(store, path).info.status == "KILLED"
    assert store.active_run() is None
    assert events(path).Images("overview")


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")]
)
def test_a_missing_extra_is_said_before_anything_is_computed(
    name: str,
    module: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for loaded in [each for each in sys.modules if each.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(
        sys, "argv", ["wecfl", "run", "--out", str(tmp_path / "run"), "--track", name]
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr()
    assert end.value.code == 2
    assert said.out == ""
    assert said.err.startswith("wecfl: ")
    assert f"pip install 'wecfl[{name}]'" in said.err
    assert len(said.err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_tracker_needs_the_folder_of_its_run(fed: Federation, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="folder"):
        run_flat(fed, methods.fedavg, rounds=1, watch=[TensorBoard(tmp_path)], **QUICK)


def test_a_store_that_can_not_be_written(
    store: Any, fed: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")  # no longer supported
    with pytest.raises(TrackError, match="MLflow at file:"):
        path = tmp_path / "run"
        run_flat(fed, methods.fedavg, rounds=1, out=path, watch=[MLflow(path)], **QUICK)
