"""The twins of the methods with one model, or one for each client, against something else."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import twins
from twin import twin
from twins import Batches, Inputs, Outcome, row, tensors
from wecfl import Federation
from wecfl.core.plan import LocalPlan
from wecfl.models import reinitialized, row_of

HEAD = {"3.weight", "3.bias"}
PRESENT = [{0, 1, 2}, {1}, set[int](), {0, 2}, {0, 1, 2}]


# ── clients with samples, and a network ──────────────────────────────────────────────────────────


def network() -> nn.Sequential:
    """Its last layer is `HEAD`."""
    made = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    return nn.Sequential(*reinitialized(made, seed=0, which=0).children())


def inputs_of(fed: Federation, module: nn.Module, **others: Any) -> Inputs:
    """What the twins are given, from a federation."""
    x, y = torch.from_numpy(fed.x), torch.from_numpy(fed.y)
    clients = [(x[torch.from_numpy(rows)], y[torch.from_numpy(rows)]) for rows in fed.train]
    keys = [int(key) for key in fed.keys]
    return Inputs(clients=clients, keys=keys, module=module, **others)


@pytest.fixture
def inputs(fed: Federation) -> Inputs:
    """Three clients in float64, not in the order of their keys; some are absent, some late."""
    return inputs_of(
        fed.subset([4, 0, 2]), network(), rounds=5, seed=3, steps=4, batch=4, lr=0.1,
        momentum=0.8, weight_decay=0.01, present=PRESENT,
        done=[[4, 4, 4, 2, 4], [4, 1, 4, 4, 3], [3, 4, 4, 4, 4]],
    ).double()  # fmt: skip


def walk(inputs: Inputs, i: int, t: int) -> Batches:
    plan = LocalPlan(steps=inputs.steps, batch=inputs.batch)
    every = plan.batches(len(inputs.clients[i][1]), inputs.seed, t, inputs.keys[i])
    return every if inputs.done is None else every[: inputs.done[i][t]]


def torch_sgd(inputs: Inputs, model: nn.Module) -> torch.optim.Optimizer:
    how: Any = {"momentum": inputs.momentum, "weight_decay": inputs.weight_decay}
    return torch.optim.SGD(model.parameters(), lr=inputs.lr, **how)


def torch_steps(
    inputs: Inputs,
    i: int,
    batches: Batches,
    optimizer: torch.optim.Optimizer,
    forward: Callable[[Tensor], Tensor],
    *,
    penalty: Callable[[], Tensor | float] = lambda: 0.0,
) -> None:
    """The steps of torch's own optimizer."""
    x, y = inputs.clients[i]
    for rows in map(torch.from_numpy, batches):
        optimizer.zero_grad()
        torch.autograd.backward(inputs.loss(forward(x[rows]), y[rows]) + penalty())
        optimizer.step()


def same(one: nn.Module, two: nn.Module) -> None:
    np.testing.assert_allclose(row(one), row(two), rtol=1e-9, atol=1e-12)


def all_same(one: Outcome, two: Outcome) -> None:
    for a, b in zip([one.center, *one.models], [two.center, *two.models], strict=True):
        same(a, b)


# ── clients whose loss is a bowl, a/2·(w − b)²: their local update has a closed form ─────────────

A = np.array([[1.0, 0.5], [2.0, 1.0], [0.5, 4.0]])
B = np.array([[3.0, -1.0], [-2.0, 1.0], [0.5, 2.0]])
SIZES = np.array([1, 2, 5])
START = np.array([1.0, -2.0])
Q, LR = 3, 0.1


class Pair(nn.Module):
    """Two numbers, neither of which enters the gradient of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Parameter(torch.tensor(START[:1]))
        self.head = nn.Parameter(torch.tensor(START[1:]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.body, self.head]) - x


def bowl(gap: Tensor, a: Tensor) -> Tensor:
    return (a / 2 * gap**2).sum(dim=1).mean()


def bowls(**others: Any) -> Inputs:
    """Each client holds the same sample |D_i| times, so that all its mini-batches are alike."""
    clients = [
        (torch.tensor(b).expand(n, 2), torch.tensor(a).expand(n, 2))
        for a, b, n in zip(A, B, SIZES.tolist(), strict=True)
    ]
    usual: dict[str, Any] = {
        "rounds": len(PRESENT), "steps": Q, "lr": LR, "momentum": 0.0, "present": PRESENT,
    }  # fmt: skip
    return Inputs(clients=clients, keys=[0, 1, 2], module=Pair(), loss=bowl, **(usual | others))


def mean_reply(w: Any, here: set[int]) -> Any:
    """Σ λ_i ω_i / Σ λ_i after Q steps from w, in closed form."""
    who = sorted(here)
    after = B[who] + (1 - LR * A[who]) ** Q * (w - B[who])
    return SIZES[who] @ after / SIZES[who].sum()


def close(model: nn.Module, expected: Any, rtol: float = 1e-9) -> None:
    np.testing.assert_allclose(row(model), expected, rtol=rtol)


# ── the row ──────────────────────────────────────────────────────────────────────────────────────


def test_row_is_the_librarys() -> None:
    module = network()
    next(module.parameters()).requires_grad_(False)
    np.testing.assert_array_equal(row(module), row_of(module))


# ── FedAvg ───────────────────────────────────────────────────────────────────────────────────────


def test_fedavg_is_the_other_twins(fed: Federation) -> None:
    plan = LocalPlan(steps=5, batch=4, lr=0.05)
    _, clients = twin("fedavg", fed, [network()], plan, rounds=4, seed=3, mu=0.0)
    given = inputs_of(fed, network(), rounds=4, seed=3, steps=5, batch=4, lr=0.05)
    ours = twins.fedavg(given)
    for one, two in zip(ours.models, clients, strict=True):
        np.testing.assert_allclose(row(one), row(two), rtol=1e-5, atol=1e-6)
    assert np.abs(row(ours.center) - row(network())).max() > 0.1
    np.testing.assert_array_equal(row(given.module), row(network()))


def test_fedavg_weighs_those_who_are_heard() -> None:
    w = START
    for here in PRESENT:
        w = mean_reply(w, here) if here else w
    close(twins.fedavg(bowls()).center, w)


def test_fedavg_does_not_depend_on_the_order_of_clients(inputs: Inputs) -> None:
    order = [2, 0, 1]
    turned = replace(
        inputs,
        clients=[inputs.clients[i] for i in order],
        keys=[inputs.keys[i] for i in order],
        present=[{order.index(i) for i in here} for here in PRESENT],
        done=[(inputs.done or [])[i] for i in order],
    )
    same(twins.fedavg(turned).center, twins.fedavg(inputs).center)


# ── the server's optimizer ───────────────────────────────────────────────────────────────────────

ETA, TAU = 0.3, 1e-3


def torch_server(make: Callable[[list[Tensor]], torch.optim.Optimizer]) -> Any:
    """The bowls' run with one of torch's optimizers at the server, fed with −Δ."""
    w = torch.tensor(START, requires_grad=True)
    optimizer = make([w])
    for here in PRESENT:
        if here:
            w.grad = w.detach() - torch.tensor(mean_reply(w.detach().numpy(), here))
            optimizer.step()
    return w.detach().numpy()


def test_fedavgm_is_torchs_sgd() -> None:
    expected = torch_server(lambda w: torch.optim.SGD(w, lr=ETA, momentum=0.7))
    close(twins.fedavgm(bowls(), eta=ETA, beta=0.7).center, expected)
    expected = torch_server(lambda w: torch.optim.SGD(w, lr=1.0, momentum=0.9))
    close(twins.fedavgm(bowls()).center, expected)


def test_fedadagrad_is_torchs() -> None:
    expected = torch_server(
        lambda w: torch.optim.Adagrad(w, lr=ETA, initial_accumulator_value=TAU**2, eps=TAU)
    )
    close(twins.fedadagrad(bowls(), eta=ETA).center, expected)


def test_fedadam_is_torchs_where_the_bias_has_died_away() -> None:
    def make(w: list[Tensor]) -> torch.optim.Optimizer:
        optimizer = torch.optim.Adam(w, lr=ETA, betas=(0.9, 0.99), eps=TAU)
        v = torch.full_like(w[0], TAU**2)
        late: dict[str, Any] = {"step": torch.tensor(1e6), "exp_avg": torch.zeros_like(w[0])}
        optimizer.state[w[0]] = {**late, "exp_avg_sq": v}
        return optimizer

    close(twins.fedadam(bowls(), eta=ETA).center, torch_server(make))


SECOND: dict[str, tuple[Callable[..., Outcome], Callable[[Any, Any], Any]]] = {
    "fedadagrad": (twins.fedadagrad, lambda v, d: v + d * d),
    "fedadam": (twins.fedadam, lambda v, d: 0.8 * v + 0.2 * d * d),
    "fedyogi": (twins.fedyogi, lambda v, d: v - 0.2 * d * d * np.sign(v - d * d)),
}


@pytest.mark.parametrize("name", SECOND)
def test_adaptive_servers_do_what_their_formula_says(name: str) -> None:
    """With a τ for which v is sometimes above Δ² and sometimes below: Yogi has both signs."""
    method, second = SECOND[name]
    w, m, tau = START, np.zeros(2), 0.3
    v, signs = np.full(2, tau**2), set[float]()
    for here in PRESENT:
        if here:
            delta = mean_reply(w, here) - w
            signs |= set(np.sign(v - delta**2).tolist())
            m = 0.6 * m + 0.4 * delta
            v = second(v, delta)
            w = w + ETA * m / (np.sqrt(v) + tau)
    how = {"eta": ETA, "beta1": 0.6, "tau": tau}
    how |= {} if name == "fedadagrad" else {"beta2": 0.8}
    close(method(bowls(), **how).center, w)
    assert signs == {-1, 1}


def test_defaults_of_fedadam_and_fedyogi_in_one_round() -> None:
    """v grows from τ²: by (1 − β2)·(Δ² − τ²) in FedAdam, by (1 − β2)·Δ² in FedYogi."""
    one = bowls(rounds=1)
    delta = mean_reply(START, PRESENT[0]) - START
    for method, v in (
        (twins.fedadam, 0.99 * TAU**2 + 0.01 * delta**2),
        (twins.fedyogi, TAU**2 + 0.01 * delta**2),
    ):
        close(method(one, eta=ETA).center, START + ETA * 0.1 * delta / (np.sqrt(v) + TAU))


def test_fedavgm_without_momentum_is_fedavg(inputs: Inputs) -> None:
    all_same(twins.fedavgm(inputs, beta=0.0), twins.fedavg(inputs))


@pytest.mark.parametrize(
    "method", [twins.fedavgm, twins.fedadagrad, twins.fedadam, twins.fedyogi, twins.scaffold]
)
def test_servers_average_statistics(method: Callable[..., Outcome], inputs: Inputs) -> None:
    """In the first round statistics are those of FedAvg, while parameters are not."""
    inputs = replace(inputs, rounds=1, momentum=0.0)
    how = {"server_lr": 0.5} if method is twins.scaffold else {"eta": 0.5}
    runs = method(inputs, **how), twins.fedavg(inputs)
    found, expected = (tensors(run.center) for run in runs)
    for name in ("1.running_mean", "1.running_var"):
        torch.testing.assert_close(found[name], expected[name])
        assert not torch.equal(found[name], tensors(inputs.module)[name])
    assert not torch.allclose(found["3.weight"], expected["3.weight"])


# ── SCAFFOLD ─────────────────────────────────────────────────────────────────────────────────────


def test_scaffold_of_one_client_is_sgd(inputs: Inputs) -> None:
    clients, done = [inputs.clients[1]], [[4, 1, 4, 4, 3]]
    alone = replace(inputs, clients=clients, keys=[7], present=None, done=done)
    model = deepcopy(alone.module).train()
    optimizer = torch_sgd(replace(alone, momentum=0.0), model)
    for t in range(alone.rounds):
        torch_steps(alone, 0, walk(alone, 0, t), optimizer, model)
    same(twins.scaffold(alone).center, model)


def test_scaffold_of_identical_clients_is_fedavg(inputs: Inputs) -> None:
    alike = replace(
        inputs, clients=[inputs.clients[1]] * 3, keys=[7] * 3, present=None, done=None, momentum=0.0
    )
    all_same(twins.scaffold(alike), twins.fedavg(alike))


def test_scaffold_by_hand() -> None:
    """Also with clients that are away or late; c is the λ-mean of all c_i, old and new."""
    done, server_lr = [[3, 3, 3, 1, 3], [2, 3, 3, 3, 1], [3, 3, 3, 2, 3]], 0.7
    x, c, own = START, np.zeros(2), np.zeros((3, 2))
    for t, here in enumerate(PRESENT):
        replies = {}
        for i in here:
            y = x
            for _ in range(done[i][t]):
                y = y - LR * (A[i] * (y - B[i]) - own[i] + c)
            own[i], replies[i] = own[i] - c + (x - y) / (done[i][t] * LR), y
        if here:
            step: Any = sum(SIZES[i] * (y - x) for i, y in replies.items())
            x = x + server_lr * step / sum(SIZES[i] for i in here)
            c = np.average(own, axis=0, weights=SIZES)
    found = twins.scaffold(bowls(done=done, momentum=0.9), server_lr=server_lr)
    close(found.center, x)
    for model in found.models:
        same(model, found.center)


def test_scaffold_finds_the_least_weighted_loss_where_fedavg_does_not() -> None:
    """λ weighs both what the server averages and c."""
    weighted = SIZES[:, None] * A
    least = (weighted * B).sum(axis=0) / weighted.sum(axis=0)
    often = bowls(rounds=60, present=None)
    close(twins.scaffold(often).center, least, rtol=1e-3)
    assert np.abs(row(twins.fedavg(often).center) / least - 1).max() > 0.1


# ── models of one's own ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("keep", [True, False])
def test_local_is_torchs_sgd(keep: bool, inputs: Inputs) -> None:
    inputs = replace(inputs, keep_momentum=keep)
    found = twins.local(inputs)
    for i, own in enumerate(found.models):
        model = deepcopy(inputs.module).train()
        optimizer = torch_sgd(inputs, model)
        for t in range(inputs.rounds):
            if i in PRESENT[t]:
                optimizer = optimizer if keep else torch_sgd(inputs, model)
                torch_steps(inputs, i, walk(inputs, i, t), optimizer, model)
        same(own, model)
    same(found.center, inputs.module)


@pytest.mark.parametrize("steps", [None, 2, 7])
def test_fedavg_ft_is_fedavg_and_then_torchs_sgd(steps: int | None, inputs: Inputs) -> None:
    def stream(i: int) -> Batches:
        return LocalPlan(steps=9, batch=6).batches(len(inputs.clients[i][1]), 99, 0, i)

    inputs = replace(inputs, present=[{0, 1}] * 5)  # the last one never takes part
    center, models = twins.fedavg_ft(inputs, stream, ft_steps=steps)
    same(center, twins.fedavg(inputs).center)
    for i, own in enumerate(models):
        model = deepcopy(center).train()
        torch_steps(inputs, i, stream(i)[: steps or 4], torch_sgd(inputs, model), model)
        same(own, model)


@pytest.mark.parametrize("keep", [True, False])
def test_ditto_minimizes_what_it_says_by_torchs_sgd(keep: bool, inputs: Inputs) -> None:
    """The penalty through autograd; Ω^t from FedAvg. Client 1 comes in the third round."""
    present = [{0}, {0}, {0, 1}, {1}, {0, 1}]
    inputs = replace(inputs, present=present, keep_momentum=keep)
    center, models = twins.ditto(inputs, lam=0.7)
    same(center, twins.fedavg(inputs).center)
    servers = [twins.fedavg(replace(inputs, rounds=t)).center for t in range(5)]
    for i, first in ((0, 0), (1, 2)):
        model = deepcopy(servers[first]).train()
        optimizer = torch_sgd(inputs, model)
        for t in [t for t in range(5) if i in present[t]]:

            def penalty(model: nn.Module = model, received: nn.Module = servers[t]) -> Tensor:
                pairs = zip(model.parameters(), received.parameters(), strict=True)
                return 0.35 * torch.stack([((v - w.detach()) ** 2).sum() for v, w in pairs]).sum()

            optimizer = optimizer if keep else torch_sgd(inputs, model)
            torch_steps(inputs, i, walk(inputs, i, t), optimizer, model, penalty=penalty)
        same(models[i], model)
    same(models[2], inputs.module)


def test_ditto_without_its_penalty_is_local_and_its_weight_is_one(inputs: Inputs) -> None:
    for one, two in zip(twins.ditto(inputs, lam=0).models, twins.local(inputs).models, strict=True):
        same(one, two)
    all_same(twins.ditto(inputs), twins.ditto(inputs, lam=1.0))


def test_ditto_comes_to_rest_between_the_client_and_the_server() -> None:
    """Where a·(v − b) + lam·(v − Ω) = 0."""
    center, models = twins.ditto(bowls(rounds=80, present=None), lam=2.0)
    for i, own in enumerate(models):
        close(own, (A[i] * B[i] + 2 * row(center)) / (A[i] + 2), rtol=1e-4)


# ── a part of one's own ──────────────────────────────────────────────────────────────────────────


def test_nothing_private_is_fedavg_and_everything_is_local(inputs: Inputs) -> None:
    every, nothing = set(tensors(inputs.module)), set[str]()
    for fedavg in (
        twins.fedper(inputs, nothing),
        twins.lg_fedavg(inputs, every),
        twins.fedrep(inputs, nothing, head_steps=0),
    ):
        all_same(fedavg, twins.fedavg(inputs))
    for local in (
        twins.fedper(inputs, every),
        twins.lg_fedavg(inputs, nothing),
        twins.fedrep(inputs, every, head_steps=4),
    ):
        all_same(local, twins.local(inputs))


@pytest.mark.parametrize("keep", [True, False])
def test_separable_losses_give_fedavg_in_one_column_and_local_in_the_other(keep: bool) -> None:
    """Client 0 stays away from the last round, client 2 from all: both have what is shared."""
    given = bowls(
        rounds=4, steps=5, momentum=0.6, keep_momentum=keep, present=[{0, 1}, {1}, {0}, {1}]
    )

    def columns(found: Outcome) -> Any:
        return np.array([row(model) for model in found.models])

    def expected(body: Outcome, head: Outcome) -> Any:
        return np.stack([columns(body)[:, 0], columns(head)[:, 1]], axis=1)

    fedavg, local = twins.fedavg(given), twins.local(given)
    few, many = replace(given, steps=2), replace(given, steps=3)
    for found, wanted in (
        (twins.fedper(given, {"head"}), expected(fedavg, local)),
        (twins.lg_fedavg(given, {"head"}), expected(local, fedavg)),
        (
            twins.fedrep(given, {"head"}, head_steps=2),
            expected(twins.fedavg(many), twins.local(few)),
        ),
    ):
        np.testing.assert_allclose(columns(found), wanted, rtol=1e-9)
    close(twins.fedper(given, {"head"}).center, [row(fedavg.center)[0], START[1]])


def test_statistics_go_with_the_body(inputs: Inputs) -> None:
    fedper, lg = twins.fedper(inputs, HEAD), twins.lg_fedavg(inputs, HEAD)
    for found, private in ((fedper, HEAD), (lg, set(tensors(inputs.module)) - HEAD)):
        for name, tensor in tensors(found.center).items():
            each = [tensors(model)[name] for model in found.models]
            assert all(torch.equal(tensor, own) for own in each) == (name not in private)
            if name in private:
                assert torch.equal(tensor, tensors(inputs.module)[name])


@pytest.mark.parametrize("keep", [True, False])
def test_fedrep_is_two_optimizers_of_torch(keep: bool, inputs: Inputs) -> None:
    """The head learns from what a copy of the body makes of a batch: the body does not notice.

    Who is late gets to the body with one batch, or with none.
    """
    inputs = replace(inputs, keep_momentum=keep)
    sizes = [len(y) for _, y in inputs.clients]
    body = network().double()[:3]
    bodies = [network().double()[:3].train() for _ in sizes]
    heads = [network().double()[3] for _ in sizes]

    def optimizers(i: int) -> list[torch.optim.Optimizer]:
        return [torch_sgd(inputs, part) for part in (heads[i], bodies[i])]

    kept = [optimizers(i) for i in range(3)]
    for t, here in enumerate(PRESENT):
        for i in here:
            bodies[i].load_state_dict(body.state_dict())
            of_head, of_body = kept[i] if keep else optimizers(i)
            fixed = nn.Sequential(deepcopy(bodies[i]).requires_grad_(False), heads[i])
            torch_steps(inputs, i, walk(inputs, i, t)[:2], of_head, fixed)
            joined = nn.Sequential(bodies[i], heads[i])
            torch_steps(inputs, i, walk(inputs, i, t)[2:], of_body, joined)
        for name, tensor in tensors(body).items() if here else ():
            total: Any = sum(sizes[i] * tensors(bodies[i])[name].detach() for i in here)
            tensor.data.copy_(total / sum(sizes[i] for i in here))
    found = twins.fedrep(inputs, HEAD, head_steps=2)
    for model, head in zip(found.models, heads, strict=True):
        same(model, nn.Sequential(*body.children(), head))
