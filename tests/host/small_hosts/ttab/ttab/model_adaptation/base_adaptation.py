import copy

import torch


class BaseAdaptation:
    """The verbs that the benchmark calls."""

    def __init__(self, meta_conf, base_model):
        self._meta_conf = copy.deepcopy(meta_conf)
        self._base_model = base_model
        self.initialize(seed=self._meta_conf.seed)
        self._post_safety_check()

    def _post_safety_check(self):
        assert self._model.training, "adaptation needs train mode"

    def _get_adaptation_steps(self, index=None):
        return self._meta_conf.n_train_steps

    def copy_model(self):
        return copy.deepcopy(self._model)

    def stochastic_restore(self):
        for module_name, module in self._model.named_modules():
            for name, param in module.named_parameters():
                if name in ["weight", "bias"] and param.requires_grad:
                    mask = (torch.rand(param.shape) < self._meta_conf.restore_prob).float()
                    source = self.model_state_dict[f"{module_name}.{name}"]
                    param.data = source * mask + param.data * (1.0 - mask)
