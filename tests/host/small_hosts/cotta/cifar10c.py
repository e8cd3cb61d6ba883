import logging

import tent
from conf import cfg, load_cfg_fom_args
from robustbench.data import load_cifar10c
from robustbench.utils import clean_accuracy as accuracy
from robustbench.utils import load_model

logger = logging.getLogger(__name__)


def evaluate(description):
    load_cfg_fom_args(description)
    base_model = load_model(cfg.MODEL.ARCH).cuda()
    if cfg.MODEL.ADAPTATION == "source":
        logger.info("test-time adaptation: NONE")
        model = setup_source(base_model)
    if cfg.MODEL.ADAPTATION == "tent":
        logger.info("test-time adaptation: TENT")
        model = setup_tent(base_model)
    for severity in cfg.CORRUPTION.SEVERITY:
        for place, corruption in enumerate(cfg.CORRUPTION.TYPE):
            try:
                if place == 0:
                    model.reset()
                logger.info("resetting model")
            except:  # noqa: E722
                logger.warning("not resetting model")
            x_test, y_test = load_cifar10c(cfg.CORRUPTION.NUM_EX, severity, cfg.DATA_DIR, False, [corruption])
            x_test, y_test = x_test.cuda(), y_test.cuda()
            error = 1.0 - accuracy(model, x_test, y_test, cfg.TEST.BATCH_SIZE)
            logger.info(f"error % [{corruption}{severity}]: {error:.2%}")


def setup_source(model):
    return model.eval()


def setup_tent(model):
    return tent.Tent(model)


if __name__ == "__main__":
    evaluate("evaluation")
