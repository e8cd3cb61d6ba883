def setup_source(model, cfg=None):
    return model.eval(), None


def setup_tent(model, cfg):
    return model.eval(), ["bn1.weight"]
