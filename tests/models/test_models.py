"""The models of the paper, and modules as rows."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from wecfl.errors import ModelError
from wecfl.models import MODELS, Vote, build, fill, layout_of, make, reinitialized, row_of


def shapes(module: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(parameter.shape) for parameter in module.parameters()]


def test_the_cnn_for_fashion_mnist_is_that_of_the_paper() -> None:
    module = build("cnn-fashion", shape=(1, 28, 28), classes=10)
    assert shapes(module) == [
        (16, 1, 5, 5), (16,), (16,), (16,), (32, 16, 5, 5), (32,), (32,), (32,), (10, 1568), (10,),
    ]  # fmt: skip
    layout = layout_of(module)
    assert layout.trainable == 416 + 32 + 12_832 + 64 + 15_690 == 29_034
    assert layout.width - layout.trainable == 2 * (16 + 32)
    kinds = [type(part).__name__ for part in module.children()]
    stage = ["Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d"]
    assert kinds == [*stage, *stage, "Flatten", "Linear"]
    assert module(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_the_cnn_for_cifar_10_is_that_of_the_paper() -> None:
    module = build("cnn-cifar", shape=(3, 32, 32), classes=10)
    assert shapes(module) == [
        (6, 3, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 400), (120,), (84, 120), (84,), (10, 84),
        (10,),
    ]  # fmt: skip
    assert layout_of(module).width == layout_of(module).trainable == 62_006
    assert module(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "shape", "width", "head", "linear"),
    [
        ("cnn-fashion", (1, 28, 28), 29_130, slice(13_344, 29_024), slice(13_344, 29_034)),
        ("cnn-cifar", (3, 32, 32), 62_006, slice(61_156, 61_996), slice(2_872, 62_006)),
        ("mlp", (1, 8, 8), 4_810, slice(4_160, 4_800), slice(0, 4_810)),
        ("logistic", (7,), 80, slice(0, 70), slice(0, 80)),
    ],
)
def test_layout(name: str, shape: tuple[int, ...], width: int, head: slice, linear: slice) -> None:
    module = build(name, shape=shape, classes=10)
    layout = layout_of(module)
    assert (layout.width, layout.columns("head")) == (width, head)
    assert layout.columns("linear") == linear
    last = [part for part in module.modules() if isinstance(part, nn.Linear)][-1]
    assert np.array_equal(row_of(module)[head], last.weight.detach().numpy().ravel())


def test_models_fit_any_number_of_classes_and_are_keyed() -> None:
    before = torch.get_rng_state()
    for name, factory in MODELS.items():
        images = {"cnn-fashion": (1, 28, 28), "cnn-cifar": (3, 32, 32)}
        images |= {"lenet": (1, 28, 20), "cnn-small": (1, 16, 16), "cnn-wide": (2, 16, 16)}
        shape = images.get(name, (2, 3))
        assert factory(shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)
    torch.set_rng_state(before)
    rows = [row_of(build("mlp", shape=(4,), classes=2, seed=s)) for s in (0, 0, 1)]
    assert np.array_equal(rows[0], rows[1])
    assert not np.array_equal(rows[0], rows[2])
    assert torch.equal(before, torch.get_rng_state())


def test_models_of_other_benchmarks_have_their_sizes_and_refuse_small_images() -> None:
    sizes = {"lenet": 44_426, "cnn-small": 5_142, "cnn-wide": 582_026, "mlp-200": 159_010}
    for name, count in sizes.items():
        assert row_of(build(name, shape=(1, 28, 28), classes=10)).size == count
    for shape in ((1, 8, 8), (784,)):
        with pytest.raises(ModelError, match="at least 16 × 16 pixels"):
            build("lenet", shape=shape, classes=10)


def mixed() -> nn.Sequential:
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 4), nn.Linear(4, 3)
    )
    module[3].weight.requires_grad_(False)
    return module


def test_tags_and_order_of_a_mixed_module() -> None:
    layout = layout_of(mixed())
    names = [entry.name for entry in layout.entries]
    assert names == [
        "0.weight", "0.bias", "1.weight", "1.bias", "3.bias", "4.weight", "4.bias",
        "3.weight", "1.running_mean", "1.running_var",
    ]  # fmt: skip
    tags = {entry.name: set(entry.tags) for entry in layout.entries}
    assert tags["3.weight"] == {"frozen", "linear"}
    assert tags["4.weight"] == {"linear", "classifier", "head"}
    assert tags["1.running_var"] == {"statistics"}
    assert tags["0.weight"] == set()
    assert layout.trainable == 18 + 2 + 4 + 4 + 12 + 3


def test_a_row_and_back() -> None:
    module = mixed()
    row = np.random.default_rng(0).uniform(0.1, 1, layout_of(module).width).astype(np.float32)
    before = row_of(module)
    filled = fill(module, row)
    assert np.array_equal(row_of(filled), row)
    assert np.array_equal(row_of(module), before)
    assert not filled.training
    named = layout_of(module).tensors(row)
    state = filled.state_dict()
    for name, tensor in named.items():
        assert np.array_equal(state[name].numpy(), tensor)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_row_of_the_wrong_length(change: int) -> None:
    module = nn.Linear(2, 2)
    with pytest.raises(ModelError, match=rf"\(6,\), got \({6 + change},\)"):
        fill(module, np.zeros(6 + change, np.float32))


def test_reinitialized_draws_every_part_anew() -> None:
    module = mixed()
    module.get_buffer("1.running_mean").fill_(9)
    before, kept = torch.get_rng_state(), row_of(module)
    rows = [row_of(reinitialized(module, seed, which)) for seed, which in [(0, 1), (0, 1), (0, 2)]]
    assert np.array_equal(rows[0], rows[1])
    assert not np.array_equal(rows[0], rows[2])
    assert np.array_equal(row_of(module), kept)
    assert torch.equal(before, torch.get_rng_state())
    columns = layout_of(module).columns("statistics")
    assert rows[0][columns].tolist() == [0, 0, 1, 1]
    weights = layout_of(module).columns("0.*")
    assert not (rows[0][weights] == kept[weights]).any()


class Bare(nn.Module):
    """Parameters, but no way to draw them anew."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


def test_a_part_that_can_not_be_drawn_anew_is_named() -> None:
    with pytest.raises(ModelError, match=r"'1' .*reset_parameters"):
        reinitialized(nn.Sequential(nn.Linear(3, 3), Bare()), 0, 1)


def test_modules_that_can_not_be_rows() -> None:
    with pytest.raises(ModelError, match="Flatten"):
        layout_of(nn.Flatten())
    with pytest.raises(ModelError, match="Linear"):
        layout_of(nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(ModelError, match=r"'weight' .*float64.*float\(\)"):
        layout_of(nn.Linear(2, 2).double())
    with pytest.raises(ModelError, match=r"'0\.weight'"):
        layout_of(nn.Sequential(nn.LazyLinear(2)))


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (784,)])
def test_the_cnn_refuses_other_pictures(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=r"cnn-fashion.*\(1, 28, 28\)"):
        build("cnn-fashion", shape=shape, classes=10)


def test_names_and_functions_that_make_no_model() -> None:
    with pytest.raises(ModelError, match=r"'mpl'.*'mlp'"):
        build("mpl", shape=(3,), classes=2)
    wrong: type = dict
    with pytest.raises(ModelError, match="dict"):
        make(wrong, shape=(3,), classes=2, seed=0)


def test_a_vote_is_the_mean_of_the_logits() -> None:
    members = [nn.Linear(3, 2) for _ in range(3)]
    x = torch.randn(4, 3)
    mean = torch.stack([member(x) for member in members]).sum(dim=0) / 3
    torch.testing.assert_close(Vote(members)(x), mean)
