from contextlib import contextmanager


class Batch:
    def __init__(self, x, y):
        self._x, self._y = x, y


class Metrics:
    def __init__(self, record):
        self.record, self.correct = record, []

    def eval(self, y, y_hat):
        self.record.add(y_hat)
        self.correct.append((y_hat.argmax(1) == y).float().mean().item())

    def eval_auxiliary_metric(self, y, y_hat, metric_name):
        assert metric_name == "preadapted_accuracy_top1"

    def mean(self):
        return sum(self.correct) / len(self.correct)


class Timer:
    @contextmanager
    def __call__(self, label):
        yield
