# A Flower app that finds groups of clients: https://flower.ai runs it, wecfl is what it runs.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "APP-NAME"
version = "0.1.0"
description = "Clustered federated learning with wecfl"
license = "Apache-2.0"
dependencies = ["wecfl[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "wecfl"

[tool.flwr.app.components]
serverapp = "PACKAGE.server:app"
clientapp = "PACKAGE.client:app"

# What a run does: any choice of `wecfl run` that does not describe a simulation, and how the network
# is dealt with. flwr run … --run-config "rounds=20 clusters=3" overrides it.
[tool.flwr.app.config]
method = "wecfl"         # fedavg, fedprox, ifca, fesem, wecfl, … (wecfl methods)
clusters = 2             # K
rounds = 10              # T
steps = 10               # Q, mini-batches of local training in a round
batch = 32
lr = 0.05
seed = 0

clients = 4              # how many there will be in all
min-clients = 2          # fewest to begin with, and fewest valid replies of a round
enrolment = 120.0        # seconds to wait for all clients to join
quorum = 0.75            # share of valid replies that lets a round end without the rest
timeout = 600.0          # seconds after which a round ends anyway
pin-nodes = true         # a client's name belongs to the node that joined with it
out = "run"              # the run folder on the server; if it holds a run, that one goes on
