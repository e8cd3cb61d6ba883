algorithm_defaults = {"no_adaptation": {}, "tent": {"optimizer": "SGD"}, "shot": {"optimizer": "SGD"}}
