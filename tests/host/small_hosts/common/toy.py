"""The data and the model of the small hosts."""

import torch
from torch import nn


class ToyNet(nn.Module):
    """A convolutional network of 12 features and 4 classes; an affine BatchNorm1d where ``flat`` asks for one."""

    def __init__(self, flat=False):
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12)
        self.bn3 = nn.BatchNorm1d(12) if flat else nn.Identity()
        self.fc = nn.Linear(12, 4)

    def forward(self, x):
        x = self.bn1(self.conv1(x)).relu()
        x = self.bn2(self.conv2(x)).relu().mean((2, 3))
        return self.fc(self.bn3(x))


def images(domain, n=24):
    """Return seeded images and labels of a domain."""
    torch.manual_seed(sum(map(ord, domain)))
    return torch.rand(n, 3, 8, 8), torch.randint(0, 4, (n,))


class Record:
    """The logits that a host saw, kept in a file for the test."""

    logits = []

    @classmethod
    def add(cls, logits):
        cls.logits.append(logits.detach().clone())
        torch.save(torch.cat(cls.logits), "logits.pt")
