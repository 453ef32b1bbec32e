"""`run`, its result and its run folder."""

import csv
import json
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn

import wecfl
from helpers import run_flat, same_bits
from wecfl import Federation, Method, Result, State, methods
from wecfl.config.resolve import resolve
from wecfl.core.ask import Ask
from wecfl.core.setting import Setting
from wecfl.core.types import Table
from wecfl.engine.local import LocalEngine
from wecfl.errors import ConfigError, EngineError, ModelError, RunFolderError
from wecfl.folder.readers import read_clients, read_metrics, read_states, read_summary
from wecfl.models import Vote, fill, row_of
from wecfl.models.rows import keyed
from wecfl.runs.record import RECORD_KEYS, Record

QUICK: dict[str, Any] = {"model": "logistic", "steps": 3, "batch": 4, "lr": 0.05, "workers": 2}
FILES = {
    "config.toml", "env.json", "metrics.jsonl", "assignments.csv", "clients.csv",
    "models.safetensors", "summary.json", "classes.csv", "trace",
    "checkpoints", ".lock",
}  # fmt: skip
TINY = {
    "clients": 6, "groups": 2, "clusters": 2, "rounds": 3, "steps": 3, "model": "logistic",
    "workers": 1,
}  # fmt: skip


def net() -> nn.Module:
    with keyed(0):
        return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))


@pytest.fixture(scope="module")
def folder(fed: Federation, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """A finished run of five rounds."""
    path = tmp_path_factory.mktemp("runs") / "new" / "run"
    choices = QUICK | {"model": net()}
    return run_flat(fed, methods.wecfl(k=2), rounds=5, out=path, **choices), path


def same(a: Sequence[Record], b: Sequence[Record]) -> bool:
    """Equal but for the wall time."""
    return [{**r, "seconds": 0} for r in a] == [{**r, "seconds": 0} for r in b]


# The folder


def test_every_file_is_there_and_can_be_read(folder: tuple[Result, Path], fed: Federation) -> None:
    result, path = folder
    assert result.folder == path
    assert {file.name for file in path.iterdir()} == FILES
    config = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
    assert config["method"] == "wecfl"
    assert config["clusters"] == 2
    assert config["plan"]["steps"] == 3
    assert config["components"]["clustering"].startswith("KMeans")
    env = json.loads((path / "env.json").read_text(encoding="utf-8"))
    assert env["engine"] == "torch"
    assert env["packages"]["wecfl"] == wecfl.__version__
    clients = read_clients(path)
    assert clients["cluster"].tolist() == result.labels.tolist()
    assert clients["samples"].tolist() == fed.sizes.tolist()
    assert clients["group"].tolist() == [0, 1, 0, 1, 0]


def test_metrics_have_the_documented_keys_and_rounds_from_one(folder: tuple[Result, Path]) -> None:
    result, path = folder
    records = read_metrics(path)
    assert records == result.records
    assert [record["round"] for record in records] == [1, 2, 3, 4, 5]
    for record in records:
        assert record.keys() == RECORD_KEYS.keys()
        assert record["F"].keys() == set("LEM")
        assert record["R"] == {}
        assert record["R_estimate"].keys() == set("LD")
        assert record["seconds"].keys() == {*"LEMD", "score", "objectives"}
        assert sum(record["sizes"]) == 5
        assert 0 <= record["macro_f1"] <= 1


def test_summary_is_the_mean_of_the_last_three_rounds(folder: tuple[Result, Path]) -> None:
    result, path = folder
    summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    last = read_metrics(path)[-3:]
    for key in ("accuracy", "macro_f1", "ari"):
        assert summary[key] == pytest.approx(np.mean([record[key] for record in last]), abs=1e-12)
    assert summary["accuracy"] != result.records[-1]["accuracy"]
    assert (summary["method"], summary["engine"], summary["rounds"]) == ("wecfl", "torch", 5)
    assert (summary["status"], summary["seed"], summary["k"]) == ("finished", 0, 2)


def test_assignments_of_every_round(folder: tuple[Result, Path], fed: Federation) -> None:
    result, path = folder
    with (path / "assignments.csv").open(encoding="utf-8", newline="") as file:
        head, *lines = csv.reader(file)
    assert head == ["round", *fed.names]
    assert [line[0] for line in lines] == list("12345")
    assert [int(cell) for cell in lines[-1][1:]] == result.labels.tolist()
    for line, record in zip(lines, result.records, strict=True):
        assert np.bincount([int(c) for c in line[1:]], minlength=2).tolist() == record["sizes"]


def test_the_models_on_disk_predict_as_those_of_the_result(
    folder: tuple[Result, Path], fed: Federation
) -> None:
    result, path = folder
    tensors = load_file(path / "models.safetensors")
    x = torch.from_numpy(fed.x)
    for k in range(2):
        prefix = f"cluster.{k}."
        own = {
            name.removeprefix(prefix): torch.from_numpy(tensor)
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
        module = net()
        module.load_state_dict(own)
        assert torch.equal(module.eval()(x), result.model(cluster=k)(x))


def test_the_state_on_disk_is_the_final_state(folder: tuple[Result, Path]) -> None:
    result, path = folder
    [state] = read_states(path)
    equal_states(state, result.states[0])
    with pytest.raises(RunFolderError, match="has no checkpoint"):
        read_states(path / "nope")


def equal_states(a: State, b: State) -> None:
    assert a.round == b.round
    assert a.memory.keys() == b.memory.keys()
    pairs: list[tuple[Any, Any]] = [
        (a.models, b.models),
        (a.centers, b.centers),
        (a.labels, b.labels),
    ]
    for x, y in [*pairs, *((a.memory[name], b.memory[name]) for name in a.memory)]:
        assert x.dtype == y.dtype
        assert np.array_equal(x, y)


@pytest.mark.parametrize("method", ["wecfl", "ifca", "fedprox+"])
def test_a_written_configuration_repeats_the_run(tmp_path: Path, method: str) -> None:
    choices = {**TINY, "method": method, "loss_batches": 2, "alpha": (0.3, 8.0), "seed": 4}
    first = wecfl.run_config(resolve(flags=choices), out=tmp_path / "a")
    config = resolve(tmp_path / "a" / "config.toml")
    second = wecfl.run_config(config, out=tmp_path / "b")
    assert config == resolve(flags={**choices, "task": "classification"})  # what `auto` came to
    assert same(first.records, second.records)
    files = [(tmp_path / run / "models.safetensors").read_bytes() for run in "ab"]
    assert files[0] == files[1]
    files = [(tmp_path / run / "config.toml").read_bytes() for run in "ab"]
    assert files[0] == files[1]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ZeroDivisionError])
def test_a_stopped_run_keeps_its_last_complete_round(
    fed: Federation, tmp_path: Path, stop: type[BaseException]
) -> None:
    seen: list[State] = []

    def watch(record: Record, states: Sequence[State]) -> None:
        seen.append(states[0])
        if record["round"] == 3:
            raise stop

    with pytest.raises(stop):
        run_flat(fed, methods.wecfl(k=2), rounds=9, out=tmp_path / "run", watch=[watch], **QUICK)
    status = "interrupted" if stop is KeyboardInterrupt else "failed"
    readable(tmp_path / "run", status, 3)
    [state] = read_states(tmp_path / "run")
    equal_states(state, seen[-1])


class FailsInRoundThree:
    def __call__(self, state: State, setting: Setting) -> Table:
        if state.round == 2:
            raise EngineError("the engine gave up")
        return {}


@pytest.mark.parametrize("members", [1, 2])
def test_a_failing_engine_leaves_the_round_before(
    fed: Federation, tmp_path: Path, members: int
) -> None:
    method = methods.wecfl(k=2).replace(
        steps=(Ask(send=FailsInRoundThree()), *"EMD"), members=members
    )
    with pytest.raises(EngineError, match="gave up"):
        run_flat(fed, method, rounds=9, out=tmp_path / "run", **QUICK)
    readable(tmp_path / "run", "failed", 2)
    assert [state.round for state in read_states(tmp_path / "run")] == [2] * members


def test_scores_that_fail_do_not_count_as_a_round(
    fed: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = LocalEngine.ask
    calls: list[int] = []

    def ask(self: LocalEngine, job: Any, *rest: Any) -> Any:
        calls.append(job.program.name == "score")
        if sum(calls) == 3:
            raise EngineError("no scores")
        return whole(self, job, *rest)

    monkeypatch.setattr(LocalEngine, "ask", ask)
    with pytest.raises(EngineError, match="no scores"):
        run_flat(fed, methods.fedavg, rounds=9, out=tmp_path / "run", **QUICK)
    readable(tmp_path / "run", "failed", 2)
    assert read_states(tmp_path / "run")[0].round == 2


def test_a_run_that_fails_in_its_first_round_is_readable(fed: Federation, tmp_path: Path) -> None:
    def deep() -> nn.Module:  # a function, so that its start follows from the seed
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))

    choices = QUICK | {"model": deep, "lr": 1e20}
    with pytest.raises(EngineError, match="diverged"):
        run_flat(fed, methods.fedavg, rounds=2, out=tmp_path / "run", **choices)
    readable(tmp_path / "run", "failed", 0)
    assert read_summary(tmp_path / "run")["accuracy"] is None


def readable(path: Path, status: str, rounds: int) -> None:
    summary = read_summary(path)
    assert (summary["status"], summary["rounds"]) == (status, rounds)
    assert len(read_metrics(path)) == rounds
    assert len(read_clients(path)) == 5
    assert load_file(path / "models.safetensors")
    assert len((path / "assignments.csv").read_text(encoding="utf-8").splitlines()) == 1 + rounds


def test_places_where_no_folder_can_be_made(fed: Federation, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "precious").write_text("data")
    file = tmp_path / "file"
    file.write_text("data")
    for out, said in [
        (full, r"is not empty \(it holds precious\)"),
        (file, "Not a directory"),
        (file / "below" / "it", "Not a directory"),
        (tmp_path / ("x" * 300), "File name too long"),
    ]:
        with pytest.raises(RunFolderError, match=said):
            run_flat(fed, methods.fedavg, rounds=1, out=out, **QUICK)
    assert {path.name for path in tmp_path.rglob("*")} == {"full", "precious", "file"}


def test_what_is_wrong_is_said_before_anything_is_written(fed: Federation, tmp_path: Path) -> None:
    wrong: list[tuple[type[Exception], dict[str, Any], Method]] = [
        (ModelError, {"model": nn.Linear(5, 3)}, methods.fedavg),
        (ModelError, {"model": "nope"}, methods.fedavg),
        (ModelError, {"model": nn.Flatten()}, methods.fedavg),
        (ConfigError, {"rounds": 0}, methods.fedavg),
        (ConfigError, {"workers": 0}, methods.fedavg),
        (ConfigError, {"lr": -1}, methods.fedavg),
        (ConfigError, {"batchnorm": "bach"}, methods.fedavg),
        (ConfigError, {}, methods.wecfl(k=6)),
        (ModelError, {}, methods.wecfl(k=2).replace(shared="conv*")),
    ]
    for error, choices, method in wrong:
        with pytest.raises(error) as caught:
            run_flat(fed, method, out=tmp_path / "run", **(QUICK | {"rounds": 1} | choices))
        assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_numpy_numbers_are_written_as_numbers(fed: Federation, tmp_path: Path) -> None:
    choices = QUICK | {"steps": np.int64(2), "lr": np.float32(0.1)}
    seed: Any = np.int64(7)
    k: Any = np.int64(2)
    result = run_flat(fed, methods.wecfl(k=k), rounds=1, seed=seed, out=tmp_path / "run", **choices)
    again = run_flat(fed, methods.wecfl(k=2), rounds=1, seed=7, **(choices | {"steps": 2}))
    assert same(result.records, again.records)
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text(encoding="utf-8"))
    assert (config["seed"], config["clusters"], config["plan"]["steps"]) == (7, 2, 2)


@pytest.mark.parametrize("content", ["[]", "{}", '{"method": 3}', "{", "null"])
def test_a_summary_that_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "summary.json").write_text(content)
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(RunFolderError, match=r"summary\.json|can't read"):
        read_summary(tmp_path)


# The result


def test_the_model_of_a_client_scores_as_recorded(
    folder: tuple[Result, Path], fed: Federation
) -> None:
    result, _ = folder
    for i, expected in enumerate(result.records[-1]["clients"]["accuracy"]):
        x, y = torch.from_numpy(fed.x[fed.test[i]]), torch.from_numpy(fed.y[fed.test[i]])
        guess = result.model(client=i)(x).argmax(dim=1)
        assert float((guess == y).float().mean()) == pytest.approx(expected, abs=1e-5)
        assert torch.equal(guess, result.model(cluster=int(result.labels[i]))(x).argmax(dim=1))


def test_the_groups_are_found(folder: tuple[Result, Path]) -> None:
    result, _ = folder
    assert result.records[-1]["ari"] == 1.0
    assert result.centers.shape == (2, len(row_of(net())))


def test_tables_of_a_result(folder: tuple[Result, Path]) -> None:
    result, _ = folder
    history = result.history
    assert len(history) == 5
    assert {"round", "accuracy", "ari", "F.E", "R_estimate.D", "seconds.L", "sizes"} <= set(
        history.columns
    )
    assert "clients" not in history.columns
    assert len(result.clients) == 5
    assert list(result.clients.columns) == [
        "client", "samples", "group", "cluster", "accuracy", "macro_f1",
    ]  # fmt: skip
    table = result.table()
    assert table.index.tolist() == ["wecfl"]
    assert table.loc["wecfl", "accuracy"] == pytest.approx(history["accuracy"][-3:].mean())


@pytest.mark.parametrize("which", [{}, {"client": 0, "cluster": 0}, {"client": 5}, {"cluster": -1}])
def test_a_model_of_nobody(folder: tuple[Result, Path], which: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"client or cluster|from 0 to"):
        folder[0].model(**which)


def test_without_ground_truth_there_is_no_ari(fed: Federation, tmp_path: Path) -> None:
    unknown = replace(fed, groups=None)
    result = run_flat(unknown, methods.wecfl(k=2), rounds=2, out=tmp_path / "run", **QUICK)
    assert result.records[-1]["ari"] is None
    assert result.summary["ari"] is None
    assert read_clients(tmp_path / "run")["group"].isna().all()


def test_clients_are_tested_now_and_then_and_in_the_last_round(fed: Federation) -> None:
    every = run_flat(fed, methods.fedavg_ft(), rounds=5, **QUICK)
    some = run_flat(fed, methods.fedavg_ft(), rounds=5, score_every=2, **QUICK)
    tested = [record["accuracy"] is not None for record in some.records]
    assert tested == [False, True, False, True, True]
    for whole, thin in zip(every.records, some.records, strict=True):
        if thin["accuracy"] is None:
            assert set(thin["clients"]["accuracy"]) == {None}
            assert "before" not in thin
        else:
            assert thin["accuracy"] == whole["accuracy"]
            assert thin["before"] == whole["before"]
    assert some.summary["accuracy"] == pytest.approx(
        np.mean([r["accuracy"] for r in every.records[3:]])
    )
    same_bits(every, some)
    with pytest.raises(ConfigError, match=r"^score_every "):
        run_flat(fed, methods.fedavg, score_every=0, **QUICK)


def test_r_is_estimated_measured_or_left_out(fed: Federation) -> None:
    """The mini-batch of a client that holds no more samples than that is all its data."""
    rounds = {"rounds": 4, **QUICK, "batch": 4}
    exact, guess, both, all_data = (
        run_flat(fed, methods.wecfl(k=2), **{**rounds, **choice}).records
        for choice in (
            {"objectives": True}, {}, {"objectives_every": 2}, {"batch": int(fed.sizes.max())}
        )
    )  # fmt: skip
    assert [bool(record["R"]) for record in both] == [False, True, False, True]
    assert ["R_estimate" in record for record in both] == [True, False, True, False]
    assert [record["R"] for record in both[1::2]] == [record["R"] for record in exact[1::2]]
    assert [record.get("R_estimate") for record in both[::2]] == [
        record["R_estimate"] for record in guess[::2]
    ]
    errors = [
        r["R_estimate"][step] / e["R"][step] - 1
        for r, e in zip(guess, exact, strict=True)
        for step in "LD"
    ]
    assert 0 < np.abs(errors).max() < 0.5
    known = run_flat(fed, methods.wecfl(k=2), **rounds | {"batch": int(fed.sizes.max())},
                     objectives=True)  # fmt: skip
    assert [record["R_estimate"] for record in all_data] == [r["R"] for r in known.records]
    with pytest.raises(ConfigError, match="every"):
        run_flat(fed, methods.wecfl(k=2), objectives_every=2, diagnostics=True, **QUICK)


def test_objectives_can_be_left_out(fed: Federation) -> None:
    full = run_flat(fed, methods.ifca(k=2), rounds=2, objectives=True, **QUICK)
    bare = run_flat(fed, methods.ifca(k=2), rounds=2, objectives=False, **QUICK)
    assert bare.records[-1]["R"] == {}
    assert bare.records[-1]["F"] == {}
    assert full.records[-1]["R"].keys() == set("LD")
    assert np.array_equal(full.centers, bare.centers)


# Soft votes


def test_a_vote_of_one_is_the_method_itself(fed: Federation) -> None:
    one = run_flat(fed, methods.fedavg_plus(1), rounds=2, **QUICK)
    plain = run_flat(fed, methods.fedavg, rounds=2, **QUICK)
    assert same(one.records, plain.records)
    assert one.centers.tobytes() == plain.centers.tobytes()


def test_a_vote_of_three_is_that_of_its_members(fed: Federation, tmp_path: Path) -> None:
    result = run_flat(
        fed, methods.fedavg_plus(3), rounds=2, out=tmp_path / "run", **QUICK | {"lr": 0.01}
    )
    assert len(result.states) == 3
    assert len({state.centers.tobytes() for state in result.states}) == 3
    architecture = result.architecture
    for i, expected in enumerate(result.records[-1]["clients"]["accuracy"]):
        x, y = torch.from_numpy(fed.x[fed.test[i]]), torch.from_numpy(fed.y[fed.test[i]])
        members = [fill(architecture, state.models[i]) for state in result.states]
        mean: Tensor = sum((member(x) for member in members), torch.zeros(()))
        assert float((mean.argmax(dim=1) == y).float().mean()) == pytest.approx(expected, abs=1e-5)
        voted = result.model(client=i)
        assert isinstance(voted, Vote)
        assert torch.equal(voted(x).argmax(dim=1), mean.argmax(dim=1))
    files = {file.name for file in (tmp_path / "run").iterdir()}
    assert files == FILES
    assert len(read_states(tmp_path / "run")) == 3
    names = load_file(tmp_path / "run" / "models.safetensors").keys()
    assert {name.split(".cluster")[0] for name in names} == {"member.0", "member.1", "member.2"}


# Models


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out


def make_own() -> nn.Module:
    return Own()


def test_a_model_as_class_function_or_instance(fed: Federation) -> None:
    choices = QUICK | {"rounds": 1, "seed": 5}
    before = torch.get_rng_state()
    by_class = run_flat(fed, methods.fedavg, **choices | {"model": Own})
    by_function = run_flat(fed, methods.fedavg, **choices | {"model": make_own})
    with keyed(5):
        instance = Own()
    by_instance = run_flat(fed, methods.fedavg, **choices | {"model": instance})
    assert by_class.centers.tobytes() == by_function.centers.tobytes()
    assert by_class.centers.tobytes() == by_instance.centers.tobytes()
    assert isinstance(by_class.model(client=0), Own)
    assert torch.equal(before, torch.get_rng_state())
    other = run_flat(fed, methods.fedavg, **choices | {"model": Own, "seed": 6})
    assert not np.allclose(by_class.centers, other.centers)


def test_ifca_starts_from_the_instance_and_redrawn_ones(fed: Federation) -> None:
    with keyed(5):
        instance = Own()
    result = run_flat(fed, methods.ifca(k=2), **QUICK | {"model": instance, "lr": 0.0}, rounds=1)
    np.testing.assert_allclose(result.centers[0], row_of(instance), rtol=1e-5)  # a mean of equals
    assert not np.allclose(result.centers[1], result.centers[0])


def test_history_is_a_plain_table(folder: tuple[Result, Path]) -> None:
    assert isinstance(folder[0].history, pd.DataFrame)
    assert folder[0].history["round"].tolist() == [1, 2, 3, 4, 5]
