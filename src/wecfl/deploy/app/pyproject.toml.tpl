# An app of Flower (https://flower.ai) that runs a method of wecfl.
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

# The settings of a run: any choice of `wecfl run` that does not describe a simulation, and those of
# the network. flwr run … --run-config "rounds=20 clusters=3" overrides them.
[tool.flwr.app.config]
method = "wecfl"         # fedavg, fedprox, ifca, fesem, wecfl, … (wecfl methods)
clusters = 2             # K
rounds = 10              # T
steps = 10               # Q, mini-batches of local training in a round; or epochs, passes over the data
batch = 32
lr = 0.05
seed = 0

clients = 4              # number of clients in all
min-clients = 2          # least number of clients to begin with, and of valid replies in a round
enrolment = 120.0        # seconds to wait for all clients to join
quorum = 0.75            # share of valid replies with which a round can end without the rest
timeout = 600.0          # seconds after which a round ends in any case
# clip = 0.3             # privacy: clients clip their updates to this length …
# noise = 10.0           # … and add noise of so many times this length (wecfl[privacy], docs/privacy.md)
pin-nodes = true         # a client's name belongs to the node that joined with it
out = "run"              # the run folder on the server; a run that is in it continues
