"""Methods that learn one model for each cluster of clients."""

from __future__ import annotations

from typing import Literal

from wecfl.bilevel.aggregation import Mean
from wecfl.bilevel.aggregation.joint_means import CommonColumns
from wecfl.bilevel.clustering import KMeans, Nearest, Once
from wecfl.bilevel.clustering.auto import Auto, Criterion
from wecfl.bilevel.clustering.drift import Recluster, WatchedBy, rescheduled
from wecfl.bilevel.clustering.farthest_centers import FarthestCenters, to_local_centers
from wecfl.bilevel.clustering.hierarchy import Agglomerative, Bipartition, Linkage, Metric
from wecfl.bilevel.clustering.losses import LossSpread, LossVectors, needs_body
from wecfl.bilevel.clustering.served import Served
from wecfl.bilevel.clustering.updates import (
    BetweenGroups,
    DecomposedCosines,
    Merging,
    PulledSteps,
    keep_updates,
)
from wecfl.bilevel.distance import angle_sum, component, cosine, remainder, smallest_angle
from wecfl.bilevel.importance import data_size, uniform
from wecfl.bilevel.local import Risk, Train
from wecfl.bilevel.local.common_pull import PULLED_UPDATE
from wecfl.bilevel.local.mixture import (
    AddedSteps,
    AllModels,
    MixtureSteps,
    SoftMean,
    SoftSteps,
    WithCommon,
    all_centers,
    centers_and_priors,
    common_model,
)
from wecfl.bilevel.representation import Columns, Losses, Weights
from wecfl.bilevel.representation.telling import Directions, InitialUpdate, LocalCenters
from wecfl.bilevel.representation.told import Told
from wecfl.bilevel.representation.trial import Trial
from wecfl.bilevel.serving import Added, Mixed, Personal
from wecfl.core.ask import Ask
from wecfl.core.method import Method
from wecfl.methods.one_model import fedavg

__all__ = [
    "ChoiceOfClusters",
    "NumberOfClusters",
    "cam",
    "cfl",
    "clove",
    "fedem",
    "fedgroup",
    "fedrc",
    "fedsoft",
    "fesem",
    "flhc",
    "ifca",
    "ifca_one_shot",
    "ifca_plus",
    "k_fed",
    "pacfl",
    "stocfl",
    "wecfl",
]

NumberOfClusters = int | Literal["auto"]
"""A number of clusters, or "auto": the server chooses it."""

ChoiceOfClusters = Criterion | Literal["served"]
"""How the server chooses K: by how well clusters serve validation samples, or by scores of the
models alone."""


def wecfl(
    k: NumberOfClusters,
    warm: bool = True,
    criterion: ChoiceOfClusters = "served",
    pull: float = 0.0,
    *,
    recluster: Recluster = "every",
    alarm: float | None = None,
    watch: WatchedBy | None = None,
    project: int | None = None,
) -> Method:
    """WeCFL, Algorithm 1: weighted K-means of the clients' models, λ_i = |D_i| (the paper).

    With `warm`, K-means also starts from the previous centers, so that F never rises. If k is
    "auto", the server chooses K by `criterion`: with "served" it asks clients how well clusters
    would serve them (`wecfl.bilevel.clustering.served`), otherwise it looks at the models alone
    (`wecfl.bilevel.clustering.auto`). `pull` is the μ of a pull towards the mean of all
    clients, which is in the authors' code but not in the paper (`wecfl.bilevel.local.common_pull`).
    `recluster` says when clients are clustered: in every round; until the assignment has settled;
    or until then, and after that again the clients whose data drift. For the last, `alarm` is the
    rate of false alarms, and `watch` says what shows a drift, the loss or the distance
    (`wecfl.bilevel.clustering.drift`). With `project`, models are compared by this number of random
    projections of their columns (`wecfl.bilevel.representation.projection`).

    >>> wecfl(k=10).representation
    Columns('head')
    >>> wecfl(k="auto").judge
    Risk(split='validation', batches=None)
    """
    kmeans = KMeans(warm=warm)
    shown = Columns("head", project)
    method = fedavg.replace(name="wecfl", k=k, clustering=kmeans, representation=shown)
    if k == "auto" and criterion != "served":
        method = method.replace(clustering=Auto(kmeans, criterion))
    elif k == "auto":
        method = method.replace(clustering=Served(kmeans), judge=Risk("validation"))
    if pull != 0:
        method = method.replace(local=Train(mu=pull), steps=(PULLED_UPDATE, "E", "M", "D"))
    return rescheduled(method, recluster, alarm, watch)


def fesem(
    k: NumberOfClusters,
    warm: bool = True,
    criterion: ChoiceOfClusters = "served",
    pull: float = 0.0,
    *,
    recluster: Recluster = "every",
    alarm: float | None = None,
    watch: WatchedBy | None = None,
    project: int | None = None,
) -> Method:
    """FeSEM: clusters with λ_i = 1, but aggregates by data size (Xie et al.; the authors' code).

    >>> fesem(k=10).importance.__name__
    'uniform'
    """
    like = wecfl(
        k, warm, criterion, pull, recluster=recluster, alarm=alarm, watch=watch, project=project
    )
    return like.replace(name="fesem", importance=uniform, aggregation=Mean(data_size))


def ifca(k: int, batches: int | None = None) -> Method:
    """IFCA (= HypCluster): a client takes the cluster model with the least training loss.

    It starts from K different models. It aggregates with the labels that clients were trained with,
    and assigns clients afterwards (Ghosh et al., NeurIPS 2020; Mansour et al., 2020). The loss is
    estimated on `batches` mini-batches, by default on all data.

    >>> ifca(k=10).steps
    ('L', 'M', 'E', 'D')
    """
    return fedavg.replace(
        name="ifca", k=k, representation=Losses(batches), distance=component, start="each",
        opening=("E", "D"), steps=("L", "M", "E", "D"),
    )  # fmt: skip


def ifca_plus(
    k: int,
    batches: int | None = None,
    share_body: bool = True,
    restarts: int = 5,
    start_steps: int | None = None,
) -> Method:
    """IFCA+: IFCA with a common body, and a start that is spread out over the clients.

    Before the first round, all clients train the initial model for `start_steps` steps, and K of
    the trained models are drawn as in k-means++, by losses (`LossSpread`). With `share_body`, all
    layers but the last one are averaged over all clients (Ghosh et al., their weight sharing).

    >>> ifca_plus(3).opening[0].program, ifca_plus(3).aggregation.which
    (Trial(steps=None), '~classifier')
    """
    body = "~classifier" if share_body else ""
    spread, check = LossSpread(restarts, body, batches), needs_body if share_body else None
    start = Ask(Trial(start_steps), learn=spread, check=check)
    return ifca(k, batches).replace(
        name="ifca+", start="one", opening=(start, "E", "D"),
        aggregation=CommonColumns(body) if share_body else Mean(),
    )  # fmt: skip


def ifca_one_shot(k: int, start_steps: int = 100, project: int | None = None) -> Method:
    """One-shot IFCA: clients train alone, and their models are clustered once (Ghosh et al.).

    Each client takes `start_steps` steps from the initial model. Then each cluster of K-means is
    trained as by FedAvg. `project` is that of `wecfl`.

    >>> ifca_one_shot(3).opening[0].program
    Trial(steps=100)
    """
    return fedavg.replace(
        name="ifca-one-shot", k=k, representation=Columns("parameters", project),
        importance=uniform, aggregation=Mean(data_size), clustering=Once(KMeans(warm=False)),
        opening=(Ask(Trial(start_steps)), "E", "M", "D"),
    )  # fmt: skip


def clove(k: int, batches: int | None = None) -> Method:
    """CLoVE: K-means of the clients' loss vectors; each cluster gets the model that suits it best.

    It starts from K different models, and then works like IFCA (ICML 2026, arXiv 2506.22427).
    Clients are clustered with λ_i = 1, and models are averaged by data size.

    >>> clove(3).clustering
    LossVectors(fresh=10)
    """
    return ifca(k, batches).replace(
        name="clove", importance=uniform, aggregation=Mean(data_size), clustering=LossVectors()
    )


def cfl(
    eps1: float = 0.4, eps2: float = 1.0, relative: bool = False, project: int | None = None
) -> Method:
    """CFL: a cluster is split in two if its clients disagree (Sattler et al., TNNLS 2020).

    The options are those of `wecfl.bilevel.clustering.hierarchy.Bipartition`; if `relative`, ε₁ =
    0.3 and ε₂ = 0.6 are good values. `project` is that of `wecfl`.

    >>> cfl(eps1=0.1).clustering.eps1
    0.1
    """
    return fedavg.replace(
        name="cfl", k="auto", representation=Columns("head", project),
        clustering=Bipartition(eps1, eps2, relative),
    )  # fmt: skip


def flhc(
    round: int = 1,
    threshold: float = 0.5,
    linkage: Linkage = "average",
    metric: Metric = "cosine",
    project: int | None = None,
) -> Method:
    """FL+HC: clients are clustered once, by their updates in one round (Briggs et al., IJCNN 2020).

    The options are those of `wecfl.bilevel.clustering.hierarchy.Agglomerative`; `project` is that
    of `wecfl`.

    >>> flhc(round=3).clustering.round
    3
    """
    return fedavg.replace(
        name="flhc", k="auto", representation=Columns("head", project),
        clustering=Agglomerative(round, threshold, linkage, metric),
    )  # fmt: skip


def pacfl(
    vectors: int = 3,
    angle_threshold: float = 4.9,
    angles: Literal["smallest", "sum"] = "smallest",
    linkage: Linkage = "average",
) -> Method:
    """PACFL: clients are clustered once, by principal angles of their data (Vahidian et al., 2023).

    Before the first round each client sends `vectors` directions of its raw samples for each class.
    Clusters are merged while they are less than `angle_threshold` degrees apart, measured by the
    smallest principal angle or by the sum of all. Then each is trained as by FedAvg.

    >>> pacfl(vectors=5).representation
    Told(tells=Directions(vectors=5, classes=0, inputs=0))
    """
    return fedavg.replace(
        name="pacfl", k="auto", representation=Told(Directions(vectors)),
        distance=smallest_angle if angles == "smallest" else angle_sum,
        clustering=Agglomerative(0, angle_threshold, linkage, "method"),
        opening=("E", "D"), steps=("L", "M", "E", "D"),
    )  # fmt: skip


def fedgroup(
    k: int, start_steps: int = 50, per_group: int = 20, between_rate: float = 0.0
) -> Method:
    """FedGroup (FlexCFL): groups by the directions of updates, once (Duan et al., TPDS 2022).

    Before the first round, clients train the initial model for `start_steps` steps. `per_group`·K
    of them are clustered by the cosines of their updates to K main directions, and the others join
    by the cosine alone. With `between_rate`, each group also steps along the others' models.

    >>> fedgroup(3).clustering
    DecomposedCosines(per_group=20)
    """
    mean = Mean(data_size)
    return fedavg.replace(
        name="fedgroup", k=k, representation=Told(InitialUpdate(start_steps)), distance=cosine,
        clustering=DecomposedCosines(per_group), importance=uniform,
        aggregation=BetweenGroups(between_rate, mean) if between_rate else mean,
        opening=(Ask(Trial(start_steps), learn=keep_updates), "E", "M", "D"),
        steps=("L", "M", "E", "D"),
    )  # fmt: skip


def stocfl(tau: float = 0.5, proximal: float = 0.05, start_steps: int = 100) -> Method:
    """StoCFL: clusters are merged as clients come, and tied to a common model (Zeng et al., 2023).

    Clients tell how `start_steps` steps change the initial model. Clusters are merged while the
    cosine of their mean updates is at least `tau`. The model of a cluster is pulled towards a
    common one with the strength `proximal`.

    >>> stocfl().local
    PulledSteps(mu=0.05)
    """
    return fedavg.replace(
        name="stocfl", k="auto", representation=Told(InitialUpdate(start_steps)), distance=cosine,
        clustering=Merging(tau), local=PulledSteps(proximal), aggregation=WithCommon(),
        opening=("E", "D"), steps=(Ask(send=common_model), "M", "E", "D"),
    )  # fmt: skip


def k_fed(k: int, local_clusters: int = 1) -> Method:
    """k-FED: clients cluster their samples, and the server the centers (Dennis et al., 2021).

    Before the first round, each client sends the centers of `local_clusters` clusters of its
    samples. Then each of K clusters of clients is trained as by FedAvg.

    >>> k_fed(3).clustering
    FarthestCenters()
    """
    return fedavg.replace(
        name="k-fed", k=k, representation=Told(LocalCenters(local_clusters)),
        distance=to_local_centers, clustering=FarthestCenters(),
        opening=("E", "D"), steps=("L", "M", "E", "D"),
    )  # fmt: skip


def cam(k: int, proximal: float = 0.0, warm: bool = True, project: int | None = None) -> Method:
    """CAM: a model for each cluster, added to one that is common to all (Ma et al., NeurIPS 2023).

    Clients are clustered as by WeCFL, by the cluster's part of the model. `project` is that of
    `wecfl`.

    >>> cam(3).serve
    Added()
    """
    return wecfl(k, warm, project=project).replace(
        name="cam", local=AddedSteps(proximal), serve=Added(), aggregation=WithCommon(),
        steps=(Ask(send=common_model), "E", "M", "D"),
    )  # fmt: skip


def fedem(k: int) -> Method:
    """FedEM: every client is a mixture of K distributions (Marfoq et al., NeurIPS 2021).

    >>> fedem(3).local
    MixtureSteps(priors=False)
    """
    return fedavg.replace(
        name="fedem", k=k, start="each", local=MixtureSteps(), serve=Mixed(),
        representation=Weights(), distance=remainder, clustering=Nearest(),
        aggregation=AllModels(), opening=("D",), steps=(Ask(common=all_centers), "E", "M", "D"),
    )  # fmt: skip


def fedrc(k: int) -> Method:
    """FedRC: FedEM, but divided by the frequencies of labels (Guo et al., ICML 2024).

    >>> fedrc(3).local
    MixtureSteps(priors=True)
    """
    return fedem(k).replace(
        name="fedrc", local=MixtureSteps(priors=True),
        steps=(Ask(common=centers_and_priors), "E", "M", "D"),
    )  # fmt: skip


def fedsoft(k: int, proximal: float = 0.1, interval: int = 2) -> Method:
    """FedSoft: each client has a model, pulled to all centers (Ruan and Joe-Wong, AAAI 2022).

    The options are those of `wecfl.bilevel.local.mixture.SoftSteps`.

    >>> fedsoft(3).serve
    Personal()
    """
    return fedem(k).replace(
        name="fedsoft",
        local=SoftSteps(proximal, interval),
        serve=Personal(),
        aggregation=SoftMean(),
    )
