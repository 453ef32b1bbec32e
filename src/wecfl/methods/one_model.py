"""Methods that learn one model for all clients."""

from __future__ import annotations

from wecfl.bilevel.aggregation import Mean
from wecfl.bilevel.aggregation.attention import Attentive
from wecfl.bilevel.aggregation.joint_means import PeerGroups, PeerMeans
from wecfl.bilevel.aggregation.normalized import COUNTED_UPDATE, Normalized
from wecfl.bilevel.aggregation.optimizer import Adaptive, Momentum, adagrad, adam, yogi
from wecfl.bilevel.clustering import Nearest
from wecfl.bilevel.distance import squared_euclidean
from wecfl.bilevel.importance import data_size
from wecfl.bilevel.local import Train
from wecfl.bilevel.local.control_variates import CONTROLLED_UPDATE
from wecfl.bilevel.local.dane import GRADIENTS, NEWTON_UPDATE, NewtonSteps
from wecfl.bilevel.local.dynamic import Dynamic, dynamic_update
from wecfl.bilevel.local.feature_contrast import ContrastSteps
from wecfl.bilevel.representation import Columns
from wecfl.bilevel.serving import Center
from wecfl.core.ask import Ask
from wecfl.core.method import Method

__all__ = [
    "fedadagrad",
    "fedadam",
    "fedatt",
    "fedavg",
    "fedavg_plus",
    "fedavgm",
    "feddane",
    "feddyn",
    "fednova",
    "fedp2p",
    "fedprox",
    "fedprox_plus",
    "fedyogi",
    "moon",
    "scaffold",
]

FEDPROX_MU = 0.95
"""The paper's FedProx coefficient (its text calls it λ)."""

fedavg = Method(
    name="fedavg",
    representation=Columns("head"),
    distance=squared_euclidean,
    clustering=Nearest(),
    importance=data_size,
    aggregation=Mean(),
    local=Train(),
    serve=Center(),
)
"""FedAvg: one cluster, λ_i = |D_i| (McMahan et al., AISTATS 2017)."""


def fedprox(mu: float = FEDPROX_MU) -> Method:
    """FedProx: FedAvg whose clients stay near the model they received (Li et al., MLSys 2020).

    >>> fedprox(0.1).local
    Train(mu=0.1)
    """
    return fedavg.replace(name="fedprox", local=Train(mu))


def fedavg_plus(k: int) -> Method:
    """FedAvg+: k independent FedAvg runs, whose logits are averaged (the paper's soft voting).

    >>> fedavg_plus(5).members
    5
    """
    return fedavg.replace(name="fedavg+", members=k)


def fedprox_plus(k: int, mu: float = FEDPROX_MU) -> Method:
    """FedProx+: k independent FedProx runs, whose logits are averaged.

    >>> fedprox_plus(5).name
    'fedprox+'
    """
    return fedprox(mu).replace(name="fedprox+", members=k)


def fedavgm(server_lr: float = 1.0, beta: float = 0.9) -> Method:
    """FedAvgM: the server takes steps with momentum (Hsu et al., 2019).

    >>> fedavgm().aggregation.beta
    0.9
    """
    return fedavg.replace(name="fedavgm", aggregation=Momentum(server_lr, beta))


def fedadagrad(server_lr: float = 0.1, beta1: float = 0.0, tau: float = 1e-3) -> Method:
    """FedAdagrad: the server takes steps of Adagrad (Reddi et al., ICLR 2021).

    >>> fedadagrad().aggregation.second.__name__
    'adagrad'
    """
    return fedavg.replace(
        name="fedadagrad", aggregation=Adaptive(adagrad, server_lr, beta1, tau=tau)
    )


def fedadam(
    server_lr: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
) -> Method:
    """FedAdam: the server takes steps of Adam (Reddi et al., ICLR 2021).

    >>> fedadam(tau=0.1).aggregation.tau
    0.1
    """
    return fedavg.replace(name="fedadam", aggregation=Adaptive(adam, server_lr, beta1, beta2, tau))


def fedyogi(
    server_lr: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
) -> Method:
    """FedYogi: the server takes steps of Yogi (Reddi et al., ICLR 2021).

    >>> fedyogi().aggregation.second.__name__
    'yogi'
    """
    return fedavg.replace(name="fedyogi", aggregation=Adaptive(yogi, server_lr, beta1, beta2, tau))


def scaffold() -> Method:
    """SCAFFOLD: control variates against client drift (Karimireddy et al., ICML 2020).

    Clients take plain gradient steps, so its default momentum is 0.

    >>> scaffold().plan
    {'momentum': 0.0}
    """
    return fedavg.replace(
        name="scaffold", steps=(CONTROLLED_UPDATE, "E", "M", "D"), plan={"momentum": 0.0}
    )


def fedp2p(peer_groups: int = 5) -> Method:
    """FedP2P: groups of peers average their models, and the server averages the groups.

    New groups are drawn in each round (Chou et al., 2021).

    >>> fedp2p(3).aggregation
    PeerMeans()
    """
    return fedavg.replace(
        name="fedp2p",
        aggregation=PeerMeans(),
        steps=(Ask(learn=PeerGroups(peer_groups)), "E", "M", "D"),
    )


def fednova() -> Method:
    """FedNova: updates count by direction, not by the number of steps (Wang et al., NeurIPS 2020).

    The momentum of its clients starts from zero in every round.

    >>> fednova().plan
    {'keep_momentum': False}
    """
    return fedavg.replace(
        name="fednova", aggregation=Normalized(), steps=(COUNTED_UPDATE, "E", "M", "D"),
        plan={"keep_momentum": False},
    )  # fmt: skip


def feddyn(strength: float = 0.1) -> Method:
    """FedDyn: a regularizer that follows the clients' gradients (Acar et al., ICLR 2021).

    `strength` is the paper's α.

    >>> feddyn(0.01).local
    Train(mu=0.01)
    """
    return fedavg.replace(
        name="feddyn", local=Train(strength), aggregation=Dynamic(strength),
        steps=(dynamic_update(strength), "E", "M", "D"),
    )  # fmt: skip


def fedatt(server_lr: float = 1.2) -> Method:
    """FedAtt: the clients that moved farthest count most, layer by layer (Ji et al., IJCNN 2019).

    >>> fedatt().aggregation
    Attentive(step=1.2)
    """
    return fedavg.replace(name="fedatt", aggregation=Attentive(server_lr))


def moon(contrast: float = 1.0, temperature: float = 0.5) -> Method:
    """MOON: local features stay near those of the common model (Li, He, Song, CVPR 2021).

    >>> moon(5.0).local
    ContrastSteps(contrast=5.0, temperature=0.5)
    """
    return fedavg.replace(name="moon", local=ContrastSteps(contrast, temperature))


def feddane(proximal: float = 0.001) -> Method:
    """FedDANE: an exchange of gradients before each local update (Li et al., 2019).

    >>> " ".join(map(str, feddane().steps))
    'gradients(learn_gradients) L(mean_gradients) E M D'
    """
    return fedavg.replace(
        name="feddane", local=NewtonSteps(proximal), steps=(GRADIENTS, NEWTON_UPDATE, "E", "M", "D")
    )
