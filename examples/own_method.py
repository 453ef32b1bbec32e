"""Make your own method: a method is a value, and `replace` changes some of its components."""

import numpy as np

import wecfl
from wecfl import methods
from wecfl.bilevel.local import Ditto, Train
from wecfl.bilevel.serving import Personal

partition = wecfl.partitions.ClusterwiseDirichlet(alpha=(0.1, 10.0), groups=5)
fed = wecfl.Federation.from_dataset("digits", partition, clients=20, seed=0)

# 1. Another local objective: clients stay near the model of their cluster.
tied = methods.wecfl(k=5).replace(name="tied", local=Train(mu=0.1))

# 2. Another λ: clients count by the square root of their data.
gentle = methods.wecfl(k=5).replace(name="gentle", importance=np.sqrt)

# 3. SCAFFOLD inside the clusters that WeCFL finds.
scaffold = methods.scaffold()
controlled = methods.wecfl(k=5).replace(
    name="wecfl+scaffold", steps=scaffold.steps, plan=scaffold.plan
)

# 4. Ditto, whose personal models are pulled towards their cluster's center.
tethered = methods.wecfl(k=5).replace(name="wecfl+ditto", local=Ditto(lam=1.0), serve=Personal())

# 5. FedAdam for each cluster of IFCA.
adaptive = methods.ifca(k=5).replace(name="ifca+fedadam", aggregation=methods.fedadam().aggregation)

for method in (
    methods.fedavg, methods.fedper(), methods.wecfl(k=5), tied, gentle, controlled, tethered,
    adaptive,
):  # fmt: skip
    result = wecfl.run(fed, method, rounds=15, plan=wecfl.Plan(lr=0.005), seed=0)
    last = result.summary
    print(f"{method.name:<14} accuracy {last['accuracy']:.3f}  ARI {last['ari']:.2f}")
