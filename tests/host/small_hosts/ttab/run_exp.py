import parameters
from toy import Record, ToyNet, images
from ttab.configs.algorithms import algorithm_defaults
from ttab.model_adaptation import get_model_adaptation_method
from ttab.pieces import Batch, Metrics, Timer


def main(conf):
    for key, value in algorithm_defaults[conf.model_adaptation_method].items():
        setattr(conf, key, value)
    conf.model_name, conf.base_data_name, conf.statistics = "toy", "cifar10", {"n_classes": 4}
    conf.seed, conf.debug, conf.record_preadapted_perf, conf.stochastic_restore_model = 0, False, True, True
    conf.restore_prob = 0.0
    method = get_model_adaptation_method(adaptation_name=conf.model_adaptation_method)(
        meta_conf=conf, model=ToyNet().eval()
    )
    method.copy_model().eval()
    metrics, previous = Metrics(Record), []
    for x, y in zip(*(tensor.split(8) for tensor in images("fog")), strict=True):
        method.adapt_and_eval(
            episodic=conf.episodic == "true",
            metrics=metrics,
            model_selection_method=None,
            current_batch=Batch(x, y),
            previous_batches=previous,
            logger=None,
            timer=Timer(),
        )
        previous.append(x)
    print(f"stats of test-time adaptation: {method.name} {metrics.mean()}")


if __name__ == "__main__":
    main(parameters.get_args())
