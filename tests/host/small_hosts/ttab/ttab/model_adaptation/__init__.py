from ttab.model_adaptation.base_adaptation import BaseAdaptation


class TENT(BaseAdaptation):
    pass


def get_model_adaptation_method(adaptation_name):
    return {"tent": TENT, "shot": TENT}[adaptation_name]
