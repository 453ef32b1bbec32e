"""Find the hidden groups of 50 clients and give each group its own model (half a minute)."""

import wecfl

# scikit-learn's digits, divided among 50 clients in 10 groups that hold different classes.
partition = wecfl.partitions.ClusterwiseDirichlet(alpha=(0.1, 10.0), groups=10)
fed = wecfl.Federation.from_dataset("digits", partition, clients=50, seed=0)

result = wecfl.run(fed, wecfl.methods.wecfl(k=10), rounds=30, seed=0)

print(result.table().round(3).to_string())  # accuracy, macro-F1, ARI against the hidden groups
print(result.clients.head(10).to_string(index=False))  # the cluster and the scores of each client
print(result.model(client=17))  # the model of client 17's group, ready to predict
