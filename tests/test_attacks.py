"""What attackers do, what they leave alone, and that nothing depends on the order of clients."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import run_flat
from wecfl import Federation, TorchEngine, methods, metrics, models
from wecfl.bilevel import evaluation
from wecfl.channel.attacks import (
    ATTACKS,
    ALittleIsEnough,
    Backdoor,
    DataAttack,
    LabelFlip,
    ModelAttack,
    Noise,
    Scale,
    SignFlip,
    choose,
    named,
)
from wecfl.core.channel import Updates
from wecfl.core.types import Bool
from wecfl.errors import ConfigError, DataError

LYING = np.array([False, True, False, True, False])
DATA = [LabelFlip(), Backdoor()]
MODEL = [SignFlip(), Scale(), Noise(), ALittleIsEnough()]


def named_by_class(value: object) -> str:
    return type(value).__name__


# ── who ──────────────────────────────────────────────────────────────────────────────────────────


@given(
    st.lists(st.integers(0, 10**6), min_size=2, max_size=30, unique=True),
    st.sampled_from([0.0, 0.01, 0.2, 0.5]),
    st.integers(0, 99),
)
def test_the_same_clients_are_chosen_in_any_order(keys: list[int], share: float, seed: int) -> None:
    there = np.array(keys)
    chosen = choose(there, share, seed)
    assert chosen.sum() == (max(round(share * len(keys)), 1) if share else 0)
    order = np.random.default_rng(0).permutation(len(keys))
    np.testing.assert_array_equal(choose(there[order], share, seed), chosen[order])


def test_another_seed_chooses_others_and_all_have_their_turn() -> None:
    chosen = np.array([choose(np.arange(10), 0.3, seed) for seed in range(200)])
    assert (chosen.mean(axis=0) > 0.2).all() and (chosen.mean(axis=0) < 0.4).all()


@pytest.mark.parametrize("share", [-0.1, 1.0, 0.9, float("nan")])
def test_somebody_stays_honest(share: float) -> None:
    with pytest.raises(ConfigError):
        choose(np.arange(3), share, seed=0)


def test_every_attack_is_of_one_kind_and_known_by_name() -> None:
    for name, make in ATTACKS.items():
        attack = make()
        assert isinstance(attack, DataAttack) != isinstance(attack, ModelAttack)
        assert named(name) == attack
    with pytest.raises(ConfigError, match="did you mean 'sign-flip'"):
        named("signflip")


# ── data ─────────────────────────────────────────────────────────────────────────────────────────


def samples(federation: Federation, i: int, split: str = "train") -> tuple[Any, Any]:
    rows = getattr(federation, split)[i]
    return federation.x[rows], federation.y[rows]


@pytest.mark.parametrize("attack", DATA, ids=named_by_class)
@pytest.mark.parametrize("shared", [False, True])
def test_honest_data_and_tests_stay_as_they_are(
    attack: DataAttack, shared: bool, images: Federation
) -> None:
    fed = images
    if shared:  # everyone trains on the same rows, which are also everyone's test
        every = np.concatenate(fed.train)
        fed = replace(fed, train=(every,) * 5, test=(every[:9],) * 5)
    x, y = fed.x.copy(), fed.y.copy()
    bad = attack.poison(fed, LYING, seed=0)
    np.testing.assert_array_equal(fed.x, x)
    np.testing.assert_array_equal(fed.y, y)
    for i in range(5):
        for split in ("train", "test"):
            before, after = samples(fed, i, split), samples(bad, i, split)
            same = all(np.array_equal(*pair) for pair in zip(before, after, strict=True))
            assert same == (split == "test" or not LYING[i])
    np.testing.assert_array_equal(bad.sizes, fed.sizes)
    np.testing.assert_array_equal(bad.keys, fed.keys)


@pytest.mark.parametrize("attack", DATA, ids=named_by_class)
def test_what_an_attacker_learns_does_not_depend_on_its_place(
    attack: DataAttack, fed: Federation
) -> None:
    order = [3, 0, 4, 1, 2]
    one = attack.poison(fed, LYING, seed=4)
    two = attack.poison(fed.subset(order), LYING[order], seed=4)
    for place, i in enumerate(order):
        for a, b in zip(samples(one, i), samples(two, place), strict=True):
            np.testing.assert_array_equal(a, b)


def test_labels_are_flipped(fed: Federation) -> None:
    bad = LabelFlip().poison(fed, LYING, seed=0)
    for i in (1, 3):
        (x, y), (bad_x, bad_y) = samples(fed, i), samples(bad, i)
        np.testing.assert_array_equal(bad_y, 2 - y)
        np.testing.assert_array_equal(bad_x, x)


def test_nobody_lies(fed: Federation) -> None:
    bad = LabelFlip().poison(fed, np.zeros(5, bool), seed=0)
    np.testing.assert_array_equal(bad.y, fed.y)


@pytest.mark.parametrize("share", [0.01, 0.5, 1.0])
def test_a_share_of_the_pictures_bears_the_trigger(share: float, images: Federation) -> None:
    bad = Backdoor(share=share, target=2, size=0.3).poison(images, LYING, seed=0)
    for i in (1, 3):
        (x, y), (bad_x, bad_y) = samples(images, i), samples(bad, i)
        stamped = (bad_x != x).any(axis=(1, 2, 3))
        assert stamped.sum() == max(round(share * len(y)), 1)
        corner = np.zeros((6, 6), bool)
        corner[-2:, -2:] = True  # ⌈0.3 · 6⌉ = 2
        assert (bad_x[stamped][..., corner] == images.x.max()).all()
        np.testing.assert_array_equal(bad_x[..., ~corner], x[..., ~corner])
        assert (bad_y[stamped] == 2).all()
        np.testing.assert_array_equal(bad_y[~stamped], y[~stamped])
    drawn = [Backdoor().poison(images, LYING, seed).x[-40:] for seed in (0, 1)]
    assert not np.array_equal(drawn[0], drawn[1])


def test_the_trigger_of_flat_samples_is_the_first_features() -> None:
    xs = [np.random.default_rng(0).random((6, 100))]
    fed = Federation.from_arrays(xs, [[0, 1] * 3])
    bad = Backdoor(share=1.0).poison(fed, np.array([True]), seed=0)
    x, bad_x = samples(fed, 0)[0], samples(bad, 0)[0]
    assert (bad_x[:, :3] == fed.x.max()).all()  # ⌈0.15² · 100⌉
    np.testing.assert_array_equal(bad_x[:, 3:], x[:, 3:])


def test_triggered_samples_are_the_others_with_the_trigger_for_each_client(
    images: Federation,
) -> None:
    images = replace(images, y=np.where(np.arange(len(images.y)) < 12, 1, images.y))  # client 0
    backdoor = Backdoor(target=1)
    hit = backdoor.triggered(images)
    assert hit.keys.tolist() == [1, 2, 3, 4]
    for place, i in enumerate(hit.keys):
        x, y = samples(images, i, "test")
        expected = x[y != 1].copy()
        expected[..., -1:, -1:] = images.x.max()
        found, labels = samples(hit, place, "test")
        np.testing.assert_array_equal(found, expected)
        assert (labels == 1).all()
    assert np.shares_memory(images.x, hit.x) is False


def test_accuracy_on_triggered_samples_is_the_success_of_the_backdoor(fed: Federation) -> None:
    """Clients that learn the trigger fall for it; others do no more than by chance."""
    backdoor = Backdoor(size=0.5)
    hit = backdoor.triggered(fed)
    model = models.build("mlp", shape=fed.shape, classes=fed.classes)

    def success(data: Federation) -> float:
        result = run_flat(data, methods.fedavg, model=model, rounds=15, lr=0.1, workers=1)
        rows = result.states[0].models[np.isin(fed.keys, hit.keys)]
        with TorchEngine(hit, model, workers=1) as engine:
            return float(
                engine.task.scores(evaluation.tallies(engine, rows, "test"))["accuracy"].mean()
            )

    assert success(backdoor.poison(fed, np.ones(5, bool), seed=0)) > 0.9
    assert success(fed) < 0.6


def test_backdoors_that_make_no_sense_are_refused(fed: Federation) -> None:
    for share, size in ((0.0, 0.1), (1.5, 0.1), (0.5, 0.0)):
        with pytest.raises(ConfigError, match="backdoor"):
            Backdoor(share=share, size=size)
    with pytest.raises(ConfigError, match="0 to 2, got 3"):
        Backdoor(target=3).poison(fed, LYING, seed=0)
    with pytest.raises(DataError, match="another target"):
        Backdoor().triggered(replace(fed, y=np.zeros_like(fed.y)))


# ── models ───────────────────────────────────────────────────────────────────────────────────────


def replies(attackers: Bool = LYING, p: int = 8, **changes: Any) -> Updates:
    rng = np.random.default_rng(0)
    m = len(attackers)
    start = rng.normal(size=(m, p)).astype("f4")
    whole = Updates(
        start=start,
        trained=start + rng.normal(size=(m, p)).astype("f4"),
        attackers=attackers,
        labels=np.zeros(m, np.int64),
        keys=np.arange(m),
        trainable=p - 2,
        seed=0,
        round=3,
    )
    return replace(whole, **changes)


@pytest.mark.parametrize("attack", MODEL, ids=named_by_class)
def test_honest_rows_and_statistics_stay_as_they_are(attack: ModelAttack) -> None:
    given = replies(np.arange(9) % 3 == 0)
    start, trained = given.start.copy(), given.trained.copy()
    sent = attack.forge(given)
    np.testing.assert_array_equal(given.start, start)
    np.testing.assert_array_equal(given.trained, trained)
    np.testing.assert_array_equal(sent[~given.attackers], trained[~given.attackers])
    np.testing.assert_array_equal(sent[:, -2:], trained[:, -2:])
    assert (sent[given.attackers, :-2] != trained[given.attackers, :-2]).any(axis=1).all()
    assert sent.dtype == np.float32


@pytest.mark.parametrize("attack", MODEL, ids=named_by_class)
def test_what_an_attacker_sends_does_not_depend_on_its_place(attack: ModelAttack) -> None:
    given = replies(np.arange(9) % 3 == 0, labels=np.array([0, 0, 0, 1, 1, 1, 0, 0, 0]))
    order = np.random.default_rng(1).permutation(9)
    fields = ("start", "trained", "attackers", "labels", "keys")
    shuffled = replace(given, **{name: getattr(given, name)[order] for name in fields})
    np.testing.assert_allclose(attack.forge(shuffled), attack.forge(given)[order], atol=1e-6)


@pytest.mark.parametrize(
    ("attack", "factor"), [(SignFlip(), -1), (SignFlip(4), -4), (Scale(), 10), (Scale(0.5), 0.5)]
)
def test_updates_are_flipped_and_scaled(attack: ModelAttack, factor: float) -> None:
    given = replies()
    honest = given.trained - given.start
    found = (attack.forge(given) - given.start)[LYING, :-2]
    np.testing.assert_allclose(found, factor * honest[LYING, :-2], atol=1e-5)


def test_noise_is_as_large_as_asked_for_and_new_in_each_round() -> None:
    given = replies(p=20_000)
    honest = (given.trained - given.start)[LYING, :-2]
    sent = [(Noise(3).forge(replace(given, round=t)) - given.start)[LYING, :-2] for t in (3, 4, 3)]
    np.testing.assert_array_equal(sent[0], sent[2])
    for noise in sent[:2]:
        rms = np.sqrt((honest**2).mean(axis=1))
        np.testing.assert_allclose(noise.std(axis=1), 3 * rms, rtol=0.03)
        np.testing.assert_allclose(noise.mean(axis=1), 0, atol=0.1)
    streams = np.corrcoef(np.concatenate([*sent[:2], honest]))
    assert np.abs(streams - np.eye(6)).max() < 0.05  # between clients, rounds, and with training


def test_z_is_that_of_a_normal_table() -> None:
    """24 of 50 need two more for a majority: Φ(z) = (50 − 24 − 2)/(50 − 24) = 0.923, z = 1.43."""
    assert ALittleIsEnough().z(50, 24) == pytest.approx(1.43, abs=5e-3)
    assert ALittleIsEnough().z(200, 40) == pytest.approx(0.3, abs=0.01)
    assert ALittleIsEnough().z(10, 2) == 0
    assert ALittleIsEnough(1.5).z(50, 24) == 1.5
    with pytest.raises(ConfigError, match="majority"):
        ALittleIsEnough().z(10, 6)


def test_a_little_is_enough_by_cluster() -> None:
    attackers = np.array([True, True, True, True, False, False, False, False, False])
    labels = np.array([0, 0, 0, 1, 0, 0, 0, 1, 1])
    given = replies(attackers, labels=labels)
    attack = ALittleIsEnough(2.0)
    sent = (attack.forge(given) - given.start)[:4, :-2]
    honest = (given.trained - given.start)[:4, :-2].astype(np.float64)
    own = honest[:3].mean(axis=0) - 2 * honest[:3].std(axis=0)
    for update in sent[:3]:
        np.testing.assert_allclose(update, own, atol=1e-6)
    alone = honest.mean(axis=0) - 2 * honest.std(axis=0)  # from all attackers
    np.testing.assert_allclose(sent[3], alone, atol=1e-6)
    one = replies(np.arange(9) == 2)
    np.testing.assert_array_equal(attack.forge(one), one.trained)


@pytest.mark.parametrize("attack", [SignFlip, Scale, Noise, ALittleIsEnough])
@pytest.mark.parametrize("strength", [0.0, -1.0, float("inf"), float("nan")])
def test_strength_is_positive(attack: Any, strength: float) -> None:
    with pytest.raises(ConfigError, match="strength"):
        attack(strength=strength)


# ── what becomes of them ─────────────────────────────────────────────────────────────────────────


def test_isolation_counts_clusters_of_one_kind() -> None:
    attackers = np.array([True, True, True, False, False, False, False])
    labels = np.array([0, 0, 2, 2, 2, 5, 5])
    assert metrics.isolation(labels, attackers) == {"isolated": 2 / 3, "exposed": 0.5}
    assert metrics.isolation(np.zeros(7, np.int64), attackers) == {"isolated": 0, "exposed": 1}
    assert metrics.isolation(labels, ~attackers & False) == {"isolated": None, "exposed": 0}
    assert metrics.isolation(labels, attackers | True) == {"isolated": 1, "exposed": None}
