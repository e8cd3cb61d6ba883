from torch import nn
from utils.registry import ADAPTATION_REGISTRY

from methods.base import TTAMethod


@ADAPTATION_REGISTRY.register()
class Tent(TTAMethod):
    def configure_model(self):
        self.model.eval()

    def collect_params(self):
        layers = [m for m in self.model.modules() if isinstance(m, nn.BatchNorm2d)]
        return [p for m in layers for p in m.parameters()], ["norm"]

    def forward_and_adapt(self, x):
        return self.model(x[0])
