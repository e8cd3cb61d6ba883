class Registry:
    """Registers a class under its name and the lower case of it; a name twice is an error."""

    def __init__(self):
        self._classes = {}

    def register(self, cls=None):
        if cls is None:
            return self.register
        for name in {cls.__name__, cls.__name__.lower()}:
            assert name not in self._classes, name
            self._classes[name] = cls
        return cls

    def get(self, name):
        return self._classes[name]

    def registered_names(self):
        return list(self._classes)


ADAPTATION_REGISTRY = Registry()
