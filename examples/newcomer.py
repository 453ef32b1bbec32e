"""Assign a client that comes after the training to a cluster, and get the model for it."""

import wecfl

partition = wecfl.partitions.ClusterwiseDirichlet(alpha=(0.1, 10.0), groups=10)
fed = wecfl.Federation.from_dataset("digits", partition, clients=50, seed=0)

# Clients 0 to 48 are trained; the last one arrives tomorrow.
result = wecfl.run(fed.subset(range(49)), wecfl.methods.wecfl(k=10), rounds=30, seed=0)
x, y = fed.x[fed.train[49]], fed.y[fed.train[49]]

found = result.assign(x, y)  # one local update; by="losses" needs none
print(f"cluster {found.cluster}, confidence {found.confidence:.2f}, novel: {found.novel}")
print(f"accuracy on its held-out data: {100 * found.accuracy:.0f} %")
print(found.model)  # the module of its cluster, ready to predict
