from copy import deepcopy

import torch
from torch import nn


class TTAMethod(nn.Module):
    """The order of calls and the sliding window that the registry contract promises."""

    def __init__(self, cfg, model, num_classes):
        super().__init__()
        self.cfg = cfg
        self.model = model
        self.num_classes = num_classes
        self.episodic = cfg.MODEL.EPISODIC
        self.steps = cfg.OPTIM.STEPS
        self.performed_updates = 0
        self.reset_after = cfg.MODEL.RESET_AFTER_NUM_UPDATES
        self.configure_model()
        self.params, _ = self.collect_params()
        self.optimizer = self.setup_optimizer() if len(self.params) > 0 else None
        self.window = None
        self.window_length = cfg.TEST.WINDOW_LENGTH
        self.pointer = 0
        self.models = [self.model]
        self.model_states, self.optimizer_state = self.copy_model_and_optimizer()
        self.scaler = torch.cuda.amp.GradScaler() if cfg.MIXED_PRECISION else None

    def forward(self, x):
        if self.episodic:
            self.reset()
        x = x if isinstance(x, list) else [x]
        if len(x[0]) > 1:
            return self.update(x)
        if self.window is None:
            self.window = list(x)
            self.set_bn1d(False)
        elif len(self.window[0]) < self.window_length:
            self.window = [torch.cat(pair) for pair in zip(self.window, x, strict=True)]
            self.set_bn1d(True)
        else:
            for past, new in zip(self.window, x, strict=True):
                past[self.pointer] = new[0]
        if self.pointer == self.window_length - 1:
            outputs = self.update(self.window)
        else:
            outputs = self.forward_sliding_window(self.window)
        outputs = outputs[[self.pointer]]
        self.pointer = (self.pointer + 1) % self.window_length
        return outputs

    def update(self, x):
        for _ in range(self.steps):
            outputs = self.forward_and_adapt(x)
            self.performed_updates += 1
            if self.reset_after > 0 and self.performed_updates % self.reset_after == 0:
                self.reset()
        return outputs

    def set_bn1d(self, mode):
        for model in self.models:
            for m in model.modules():
                if isinstance(m, nn.BatchNorm1d):
                    m.train(mode)

    @torch.no_grad()
    def forward_sliding_window(self, x):
        return self.model(x[0])

    def forward_and_adapt(self, x):
        raise NotImplementedError

    def configure_model(self):
        raise NotImplementedError

    def setup_optimizer(self):
        return torch.optim.Adam(self.params, lr=self.cfg.OPTIM.LR)

    def copy_model_and_optimizer(self):
        return [deepcopy(m.state_dict()) for m in self.models], deepcopy(self.optimizer.state_dict())

    def reset(self):
        if self.model_states is None or self.optimizer_state is None:
            raise Exception("cannot reset without saved model/optimizer state")
        for model, state in zip(self.models, self.model_states, strict=True):
            model.load_state_dict(state, strict=True)
        self.optimizer.load_state_dict(self.optimizer_state)
