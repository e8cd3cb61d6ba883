import torch
from torch import nn


class Tent(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model.train()

    def forward(self, x):
        with torch.no_grad():
            return self.model(x)

    def reset(self):
        pass
