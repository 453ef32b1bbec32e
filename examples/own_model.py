"""Train your own model: any nn.Module with one logit per class."""

import torch
from torch import Tensor, nn

import wecfl


class Net(nn.Module):
    """A small CNN with BatchNorm and Dropout; `wecfl` sees only its parameters as a row."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(8 * 4 * 4, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, 10)."""
        return torch.as_tensor(self.head(self.features(x)))


partition = wecfl.partitions.ClusterwiseNClass((4, 4), groups=3)
fed = wecfl.Federation.from_dataset("digits", partition, clients=12, seed=0)

# For the class itself, the initial parameters are drawn for `seed`. An instance, Net(), would start
# from the parameters that it has, for example pretrained ones.
plan = wecfl.Plan(lr=0.01)
result = wecfl.run(fed, wecfl.methods.wecfl(k=3), model=Net, rounds=10, plan=plan, seed=0)

print(result.history[["round", "accuracy", "macro_f1", "ari"]].to_string(index=False))
print(f"cluster sizes: {result.records[-1]['sizes']}")
