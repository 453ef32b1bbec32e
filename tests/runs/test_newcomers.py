"""Clients that come after the training, against a naive twin; what can't be told is refused."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch.nn.functional import cross_entropy

import wecfl
from fuzzing import in_turns
from helpers import method_named, run_flat, same_folders
from wecfl import Federation, Result, methods, rng
from wecfl.config import Config
from wecfl.core.plan import LocalPlan
from wecfl.errors import ConfigError, DataError
from wecfl.experiment import run_config
from wecfl.folder.readers import config_of, read_newcomers, read_summary
from wecfl.folder.writer import RunFolder
from wecfl.from_config import federation_of
from wecfl.models import build
from wecfl.runs.member_reference import Reference
from wecfl.runs.novelty import LossVariance, MemberProbe, Usual

if TYPE_CHECKING:
    from helpers import Wecfl

CLASSES, FEATURES = 3, 4
PLAN = {"steps": 4, "batch": 8, "lr": 0.1, "momentum": 0.9}
QUICK: dict[str, Any] = {
    **PLAN, "model": "logistic", "rounds": 2, "workers": 1, "objectives": False
}  # fmt: skip
TINY = Config(
    clients=12, groups=3, clusters=3, rounds=3, steps=3, lr=0.05, model="logistic", workers=1,
    newcomers=0.25,
)  # fmt: skip
PROTOTYPES = 3 * np.random.default_rng(0).normal(size=(CLASSES, FEATURES))


def client(kind: int, seed: int, n: int = 20) -> tuple[Any, Any]:
    """Kinds call the classes differently: 0, 1 and 2 turn them around by so many."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % CLASSES
    x = PROTOTYPES[(y + kind) % CLASSES] + 0.3 * rng.normal(size=(n, FEATURES))
    return x.astype(np.float32), y


@pytest.fixture(scope="module")
def members() -> Federation:
    clients = [client(i % 2, i, 15 + 3 * i) for i in range(8)]
    xs, ys = zip(*clients, strict=True)
    return Federation.from_arrays(xs, ys, groups=np.arange(8) % 2)


@pytest.fixture(scope="module")
def result(members: Federation) -> Result:
    return run_flat(members, methods.wecfl(k=2), **QUICK)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three of twelve clients kept out."""
    path = tmp_path_factory.mktemp("runs") / "run"
    run_config(TINY, out=path)
    return path


# Against a naive twin


def naive_head(fed: Federation, i: int) -> Any:
    """The last layer after one local update from the common start, by torch's own SGD."""
    module = build("logistic", shape=fed.shape, classes=fed.classes, seed=0)
    sgd = torch.optim.SGD(module.parameters(), lr=PLAN["lr"], momentum=PLAN["momentum"])
    for batch in LocalPlan(4, 8).batches(len(fed.train[i]), 0, 0, int(fed.keys[i])):
        rows = fed.train[i][batch]
        sgd.zero_grad()
        loss = cross_entropy(module(torch.from_numpy(fed.x[rows])), torch.from_numpy(fed.y[rows]))
        torch.autograd.backward(loss)
        sgd.step()
    return module[1].weight.detach().numpy().ravel().astype(float)  # type: ignore[index]


def mean(rows: Any, weights: Any) -> Any:
    return sum(w * row for w, row in zip(weights, rows, strict=True)) / sum(weights)


@pytest.mark.parametrize(("shorten_above", "project"), [(np.inf, None), (0.5, None), (np.inf, 6)])
def test_update_distance_and_confidence(
    members: Federation, shorten_above: float, project: int | None
) -> None:
    """Of whole updates, also where the run shortens those of its members, or projects them."""
    method = methods.wecfl(k=2, project=project)
    result = run_flat(members, method, **QUICK, shorten_above=shorten_above)
    matrix: Any = np.eye(CLASSES * FEATURES)
    if project:
        draws = rng.stream(0, "projection")
        matrix = draws.standard_normal((CLASSES * FEATURES, project)) / np.sqrt(project)
    heads = [naive_head(members, i) @ matrix for i in range(8)]
    sizes, labels = members.sizes, result.labels
    x, y = client(1, 99)
    new = Federation.from_arrays([x], [y])
    head = naive_head(new, 0) @ matrix
    far = []
    for k in range(2):
        own = np.flatnonzero(labels == k)
        far.append(np.linalg.norm(head - mean([heads[i] for i in own], sizes[own])))
    found = result.assign(x, y)
    assert found.cluster == int(np.argmin(far)) == result.labels[1]
    assert found.distance == pytest.approx(min(far), rel=1e-4)
    assert found.confidence == pytest.approx(1 - min(far) / max(far), rel=1e-4)
    assert not found.novel


def test_what_is_usual_for_members(members: Federation) -> None:
    """Under privacy it is by their first updates alone; this one changes nothing."""
    result = run_flat(members, methods.wecfl(k=2), **QUICK, clip=1e9)
    heads = [naive_head(members, i) for i in range(8)]
    sizes, labels, off = members.sizes, result.labels, []
    for i in range(8):
        others = [[j for j in range(8) if labels[j] == k and j != i] for k in (0, 1)]
        means = [mean([heads[j] for j in own], sizes[own]) for own in others]
        off.append(min(np.linalg.norm(heads[i] - each) for each in means))
    reference = result.assigner.reference
    assert reference.usual is not None
    usual = [np.mean(off), np.std(off)]
    assert reference.usual.distance[0] == pytest.approx(usual, rel=1e-4)
    assert len(reference.usual.loss) == 0 and reference.inputs is None
    z = np.maximum((np.array(off) - usual[0]) / usual[1], 0)
    assert reference.usual.limits[0, 0] == pytest.approx(np.quantile(z, 0.96), rel=1e-3)
    found = result.assign(*client(1, 99))
    assert found.distance is not None
    expected = max((found.distance - usual[0]) / usual[1], 0)
    assert found.novelty == pytest.approx(expected, rel=1e-3)
    with pytest.raises(ConfigError, match="private"):
        result.assign(client(1, 99)[0])


def test_losses_and_accuracy(result: Result, members: Federation) -> None:
    x, y = client(0, 98)
    new = Federation.from_arrays([x], [y])
    found = result.assign(x, y, by="losses")

    def logits(k: int, rows: Any) -> Any:
        return result.model(cluster=k)(torch.from_numpy(new.x[rows])).detach()

    train, test = new.train[0], new.test[0]
    losses = [
        float(cross_entropy(logits(k, train), torch.from_numpy(new.y[train]))) for k in (0, 1)
    ]
    assert found.cluster == int(np.argmin(losses)) == result.labels[0]
    assert found.loss == pytest.approx(min(losses), rel=1e-4)
    assert found.distance is None
    assert found.confidence == pytest.approx(1 - min(losses) / max(losses), rel=1e-4)
    hits = logits(found.cluster, test).argmax(dim=1).numpy() == new.y[test]
    assert found.accuracy == pytest.approx(hits.mean())
    same = found.model(torch.from_numpy(new.x[test])).detach()
    assert torch.equal(same, logits(found.cluster, test))


def test_novelty_by_hand() -> None:
    """Four members of the first of two clusters; the last one fits the second cluster better."""
    far = np.array([[1.0, 9.0], [3.0, 9.0], [1.0, 9.0], [3.0, 2.0]])
    high = np.array([[0.0, 6.0], [0.0, 6.0], [4.0, 6.0], [4.0, 4.4]])
    own = np.zeros(4, np.int64)
    few = MemberProbe(4, 10 * far, high, own)
    usual = Usual.of([MemberProbe(16, far, high, own), few])
    assert usual.distance.tolist() == [[20, 10], [2, 1]] and usual.loss.tolist() == [[2, 2]] * 2
    # The last one is a standard deviation above the mean in both. With the second cluster it is 1.2
    # standard deviations above the mean loss, and not too far.
    assert usual.limits[1] == pytest.approx([1 + 0.2 * (1 - 0.12), 1])
    assert usual.novelty(16, distance=5, loss=10) == pytest.approx((5, usual.limits[1, 0]))
    assert usual.novelty(16, loss=8)[0] == 3
    assert usual.novelty(4, distance=5, loss=0)[0] == 0, "less than usual is not novel"
    # The nearest cluster has a large loss. The other one fits: 1 and 0.5 standard deviations.
    both = usual.novelty(16, distance=np.array([2, 3]), loss=np.array([12, 3]))
    assert both[0] == pytest.approx(1.25**0.5)
    assert usual.novelty(16, loss=np.array([12, 3]))[0] == 0.5
    # 1/√n of 64/9 lies in the middle of those of 4 and 16: mean 11, sd 5.5.
    assert usual.novelty(64 / 9, distance=22, loss=0)[0] == pytest.approx(2)
    assert usual.novelty(1e6, distance=5)[0] == usual.novelty(16, distance=5)[0]


def test_losses_of_fewer_test_samples_are_made_comparable() -> None:
    """Losses of 4 samples with the variance 0.25 + 4/4; a newcomer has 16."""
    draws = np.random.default_rng(0)
    samples = draws.normal(0, 0.5, (20_000, 1)) + draws.normal(0, 2, (20_000, 4))
    four, two = np.full(20_000, 4.0), np.full(20_000, 2.0)
    losses, half = samples.mean(axis=1), samples[:, :2].mean(axis=1)
    half[0] = np.nan  # a member that was not measured
    variance = LossVariance.of(losses, four, [(losses, four), (half, two)])
    assert (variance.between, variance.within) == pytest.approx((0.25, 4), rel=0.1)
    narrower = variance.spread(four, 16)
    assert narrower == pytest.approx((0.5 / 1.25) ** 0.5, rel=0.05)
    assert variance.spread(four, four) == 1
    unknown = LossVariance.of(losses, four, [(losses, four)])
    assert unknown.spread(four, 16) == 1, "no part is smaller, so nothing is known"
    assert variance.spread(np.zeros(3), 16) == 1, "no member has test samples"

    far, own = np.zeros((20_000, 1)), np.zeros(20_000, np.int64)
    as_they_are = MemberProbe(16, far, losses[:, None], own)
    usual, before = Usual.of([replace(as_they_are, loss_spread=narrower)]), Usual.of([as_they_are])
    assert usual.limits.tolist() == before.limits.tolist()
    newcomers = draws.normal(0, 0.5, 20_000) + draws.normal(0, 0.5, 20_000)  # 16 samples each
    alarms = np.mean([usual.novel(16, loss=loss) for loss in newcomers[:5000]])
    assert alarms == pytest.approx(0.04, abs=0.01)
    assert np.mean([before.novel(16, loss=loss) for loss in newcomers[:5000]]) < 0.01


def test_few_test_samples_do_not_widen_what_is_usual() -> None:
    """The same members with 60 or with six test samples: their losses spread alike for 60."""
    clients = [client(i % 2, i, 120) for i in range(40)]
    xs, ys = ([each[j][:60] for each in clients] for j in range(2))
    spreads = []
    for tests in (slice(60, 120), slice(60, 66)):
        test = [x[tests] for x, _ in clients], [y[tests] for _, y in clients]
        federation = Federation.from_arrays(xs, ys, test=test)
        usual = run_flat(federation, methods.wecfl(k=2), **QUICK).assigner.reference.usual
        assert usual is not None
        spreads.append(usual.loss[-1, 1])
    assert spreads[1] == pytest.approx(spreads[0], rel=0.3)


def test_fewer_samples_are_no_novelty() -> None:
    """A member's kind with few samples is further off than all members, and still not novel."""

    def some(i: int, n: int) -> tuple[Any, Any]:
        x, y = client(i % 2, i, 300)
        rows = np.random.default_rng(i).choice(300, n, replace=False)
        return x[rows], y[rows]

    xs, ys = zip(*[some(i, 100) for i in range(12)], strict=True)
    federation = Federation.from_arrays(xs, ys)
    result = run_flat(federation, methods.wecfl(k=2), **QUICK | {"batch": 100})
    usual = result.assigner.reference.usual
    assert usual is not None
    assert (np.diff(usual.distance[:, 0]) < 0).all(), "the more samples, the nearer"
    few = [result.assign(*some(100 + i, 8)) for i in range(20)]
    many = [result.assign(*some(200 + i, 100)) for i in range(5)]
    farthest = max(each.distance or 0 for each in many)
    assert np.mean([(each.distance or 0) > farthest for each in few]) > 0.5
    assert np.mean([each.novel for each in few]) <= 0.05


@pytest.mark.parametrize("by", ["update", "losses"])
def test_a_kind_that_nobody_saw_is_novel(result: Result, by: Any) -> None:
    for kind in (0, 1, 2):
        found = result.assign(*client(kind, 50 + kind), by=by)
        assert found.novel == (kind == 2), (kind, found.distance, found.limit)


def shifted(place: int, seed: int, n: int = 20) -> tuple[Any, Any]:
    """Clients of two places, whose inputs differ."""
    x, y = client(0, seed, n)
    return x + np.float32(place), y


def test_without_labels(members: Federation, result: Result, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be told apart by 20 inputs alone"):
        result.assign(client(0, 7)[0])
    xs, ys = zip(*[shifted(i % 2, i) for i in range(8)], strict=True)
    here = run_flat(
        Federation.from_arrays(xs, ys), methods.wecfl(k=2), out=tmp_path / "run", **QUICK
    )
    for i in range(4):
        found = here.assign(shifted(i % 2, 50 + i)[0])
        assert found.cluster == here.labels[i] and not found.novel
        assert found.found == pytest.approx(8 / 9), "all eight, and one more"
        assert found.loss is None and found.scores == {}
    assert here.assign(shifted(9, 50)[0]).novel
    again = wecfl.load(tmp_path / "run").assign(shifted(1, 50)[0])
    mine = here.assign(shifted(1, 50)[0])
    assert (again.cluster, again.novelty, again.limit) == (mine.cluster, mine.novelty, mine.limit)
    labelled = here.assign(*shifted(1, 50), by="inputs")
    assert labelled.cluster == mine.cluster and labelled.scores.keys() >= {"accuracy"}
    x = shifted(1, 50)[0]
    for arrays, problem in ((x[:, :2], "shape"), (x * np.nan, "NaN"), (x[:0], "at least 1")):
        with pytest.raises(DataError, match=problem):
            here.assign(arrays)
    for options in ({"by": "update"}, {"by": "losses"}, {"test": (x, x)}):
        with pytest.raises(ConfigError, match="give y"):
            here.assign(x, **options)


def test_test_data_may_be_given(result: Result) -> None:
    x, y = client(0, 7)
    found = result.assign(x, y, test=client(0, 8, 11))
    assert found.samples == len(y)


def test_what_a_newcomer_may_not_be(result: Result) -> None:
    x, y = client(0, 7)
    for arrays, problem in (
        ((x[:, :2], y), r"shape \(4,\).* \(2,\)"),
        ((x, y + 1), "out of range, expected 0 … 2"),
        ((x * np.nan, y), "NaN"),
        ((x[:0], y[:0]), "at least 1"),
        ((x * 1e30, y), "not finite"),
    ):
        with pytest.raises((DataError, wecfl.errors.EngineError), match=problem):
            result.assign(*arrays)
    with pytest.raises(ConfigError, match="got 'luck'"):
        result.assign(x, y, by="luck")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (methods.ifca(k=2), {}),
        (methods.fedavg, {}),
        (methods.fedavg_plus(2), {}),
        (methods.fedprox(0.5), {}),
        (methods.wecfl(k=2), {"participation": 0.5, "dropout": 0.2, "stragglers": 0.3}),
        (methods.wecfl(k=2), {"lr": "theory", "momentum": 0}),
        (methods.wecfl(k=2), {"attack": "label-flip"}),
        (methods.wecfl(k=3), {"attack": "noise"}),
    ],
)
def test_every_run_can_keep_clients_out(
    members: Federation, method: wecfl.Method, options: dict[str, Any]
) -> None:
    found = run_flat(members, method, newcomers=0.25, **{**QUICK, **options})
    assert found.newcomers is not None
    assert len(found.newcomers) == found.summary["newcomers"]["clients"] == 2
    assert len(found.federation) == 6
    late = {*found.newcomers["client"]}
    assert late.isdisjoint(found.federation.names)
    assert found.newcomers["cluster"].isin(found.labels).all()
    confident = found.newcomers["confidence"].notna()
    assert confident.all() == (len(set(found.labels)) > 1)
    assert found.assign(*client(0, 5)).cluster in found.labels


def test_privacy_is_not_spent_behind_its_back(members: Federation) -> None:
    private = QUICK | {"clip": 1.0, "participation": 0.5}
    with pytest.raises(ConfigError, match="privacy budget"):
        run_flat(members, methods.wecfl(k=2), newcomers=0.25, **private)
    with pytest.raises(ConfigError, match="privacy budget"):
        run_flat(members, methods.wecfl(k=2), **private).assign(*client(0, 5))
    everyone = run_flat(members, methods.wecfl(k=2), newcomers=0.25, **(QUICK | {"clip": 1.0}))
    assert everyone.newcomers is not None


# In a run folder


def test_who_is_kept_out_is_told(folder: Path) -> None:
    late, told = read_newcomers(folder), read_summary(folder)["newcomers"]
    assert late is not None and len(late) == told["clients"] == 3
    assert told["novel"] == late["novel"].sum()
    assert told["accuracy"] == pytest.approx(np.average(late["accuracy"], weights=late["samples"]))
    assert told["recall"] is None
    again = run_config(TINY)
    assert again.newcomers is not None
    assert again.newcomers["client"].tolist() == late["client"].tolist()


def test_a_stopped_run_ends_with_the_same_bits(folder: Path, tmp_path: Path) -> None:
    def stop(record: dict[str, Any], states: object) -> None:
        if record["round"] == 2:
            raise ZeroDivisionError

    other = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(RunFolder, "end", lambda *_: None)
        run_config(TINY, out=other, watch=[stop])
    run_config(config_of(other), out=other, resume=True)
    same_folders(folder, other)


def test_the_folder_assigns_as_the_result_does(wecfl: "Wecfl", folder: Path) -> None:
    fed = federation_of(TINY)
    result = run_config(TINY)
    x, y = fed.x[fed.train[3]], fed.y[fed.train[3]]
    np.savez("a b[1].npz", x=x, y=y)
    np.savez("b.npz", x=x, y=y, x_test=x[:4], y_test=y[:4])
    for by in ("update", "losses"):
        code, out, err = wecfl("assign", folder, "b.npz", "a b[1].npz", "--by", by, "--json")
        assert (code, err) == (0, "")
        tested, held = json.loads(out)
        mine = result.assign(x, y, by=by)
        for name in ("cluster", "samples", "novel"):
            assert held[name] == getattr(mine, name)
        for name in ("confidence", "distance", "loss", "novelty", "limit", "accuracy"):
            expected = getattr(mine, name)
            assert held[name] == (None if expected is None else pytest.approx(expected, rel=1e-6))
        assert tested["samples"] == len(y)
    np.savez("x.npz", x=x)
    code, out, _ = wecfl("assign", folder, "a b[1].npz", "x.npz")
    assert code == 0 and "a b[1] " in out and "confidence" in out
    assert "x: assigned by inputs alone" in out
    assert json.loads(wecfl("assign", folder, "x.npz", "--json").out)[0]["found"] >= 0.8


def test_an_unseen_group_is_told_apart(wecfl: "Wecfl") -> None:
    flags = [
        "--clients",
        "12",
        "--groups",
        "3",
        "--clusters",
        "2",
        "--rounds",
        "2",
        "--unseen",
        "1",
    ]
    code, out, _ = wecfl("run", *flags, "--model", "logistic", "--workers", "1", "--out", "x")
    assert code == 0
    assert "4 of them are kept out of the training" in out and "of the unseen group" in out
    told = read_summary(Path("x"))["newcomers"]
    assert (told["clients"], told["right"], told["accuracy"]) == (4, None, None)
    assert told["recall"] is not None
    assert wecfl("report", "x").code == 0
    assert "Newcomers" in Path("x/page.html").read_text(encoding="utf-8")


FOLDERS = Path(__file__).parent.parent / "folders"


def test_what_can_t_be_assigned_is_said_in_one_line(
    wecfl: "Wecfl", folder: Path, members: Federation
) -> None:

    np.savez("c.npz", x=np.zeros((4, 1, 8, 8)), y=np.arange(4))
    np.savez("flat.npz", x=np.zeros((4, 64)), y=np.arange(4))
    np.savez("x.npz", x=np.zeros((4, 1, 8, 8)))
    np.savez("y.npz", y=np.arange(4))
    np.savez("half.npz", x=np.zeros((4, 1, 8, 8)), x_test=np.zeros((4, 1, 8, 8)))
    run_flat(members, methods.wecfl(k=2), out="values", **QUICK)
    for tokens, problem in (
        (["assign", folder], "client.npz"),
        (["assign", folder, "no.npz"], "no such file"),
        (["assign", folder, "flat.npz"], "got (64,)"),
        (["assign", folder, "c.npz", "--by", "luck"], "--by"),
        (["assign", folder, "x.npz", "--by", "update"], "needs labels"),
        (["assign", folder, "y.npz"], "lacks"),
        (["assign", folder, "half.npz"], "lacks"),
        (["assign", "nowhere", "c.npz"], "nowhere"),
        (["assign", "values", "c.npz"], "result.assign(x, y)"),
        (["assign", FOLDERS / "format-0", "c.npz"], "has no reference.safetensors"),
        (["run", "--newcomers", "0"], "newcomers"),
        (["run", "--newcomers", "0.99", "--clients", "4", "--groups", "2"], "lower the share"),
        (["run", "--unseen", "10"], "groups 0, 1, 2"),
        (["run", "--unseen", "1", "--partition", "iid"], "no known groups"),
        (["run", "--newcomers", "0.9", "--clusters", "10"], "can't form 10 clusters of 5"),
    ):
        code, _, err = wecfl(*tokens)
        assert (code, err.count("\n")) == (2, 1), (tokens, err)
        assert problem in err, (tokens, err)


def test_the_reference_is_made_when_it_is_asked_for(wecfl: "Wecfl", folder: Path) -> None:
    np.savez("c.npz", x=np.zeros((4, 1, 8, 8)), y=np.arange(4))
    shutil.copytree(folder, "lazy")
    file = Path("lazy/reference.safetensors")
    before = file.read_bytes()
    file.unlink()
    first = wecfl("assign", "lazy", "c.npz", "--json")
    assert first.code == 0 and file.read_bytes() == before
    made = file.stat().st_mtime_ns
    assert wecfl("assign", "lazy", "c.npz", "--json") == first
    assert file.stat().st_mtime_ns == made


def test_a_reference_of_an_earlier_version_is_made_anew(wecfl: "Wecfl", folder: Path) -> None:
    np.savez("c.npz", x=np.zeros((4, 1, 8, 8)), y=np.arange(4))
    shutil.copytree(folder, "earlier")
    file = Path("earlier/reference.safetensors")
    before = file.read_bytes()
    held = load_file(file)
    kept = {name: held[name] for name in ("clusters", "centers", "lr")}
    save_file(kept | {"distances": np.ones(3), "losses": np.ones(3)}, file)
    shutil.copytree("earlier", "gone")
    assert wecfl("assign", "earlier", "c.npz").code == 0
    assert file.read_bytes() == before
    shutil.rmtree("gone/checkpoints")
    code, _, err = wecfl("assign", "gone", "c.npz")
    assert (code, err.count("\n")) == (2, 1) and "earlier version" in err


def test_a_folder_of_an_earlier_format_receives_newcomers(wecfl: "Wecfl") -> None:
    np.savez("c.npz", x=np.zeros((4, 1, 8, 8)), y=np.arange(4))
    shutil.copytree(FOLDERS / "format-1", "old")
    outcome = wecfl("assign", "old", "c.npz")
    assert outcome.code == 0, outcome.err
    assert Path("old/reference.safetensors").exists()


def test_a_reference_is_not_made_from_other_data(wecfl: "Wecfl", folder: Path) -> None:
    np.savez("c.npz", x=np.zeros((4, 1, 8, 8)), y=np.arange(4))
    shutil.copytree(folder, "other")
    Path("other/reference.safetensors").unlink(missing_ok=True)
    config = Path("other/config.toml")
    config.write_text(re.sub(r"clients = 12", "clients = 13", config.read_text()))
    code, _, err = wecfl("assign", "other", "c.npz")
    assert (code, err.count("\n")) == (2, 1)
    assert "the data are not those of the run" in err


def test_no_run_asks_for_a_reference_that_nobody_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Reference, "of", refuse)
    run_config(TINY.model_copy(update={"newcomers": None}), out=tmp_path / "run")
    assert not (tmp_path / "run" / "reference.safetensors").exists()


@pytest.mark.parametrize("name", in_turns(methods.METHODS, 1))
def test_newcomers_of_every_method_are_assigned_or_refused_in_one_line(
    name: str, fed: wecfl.Federation
) -> None:
    try:
        result = run_flat(
            fed, method_named(name, k=2), model="mlp", rounds=1, steps=2, workers=1, newcomers=0.4,
            objectives=False,
        )  # fmt: skip
    except ConfigError as refused:
        assert "newcomer" in str(refused) and "\n" not in str(refused)
        return
    assert result.summary["newcomers"]["clients"] == 2
