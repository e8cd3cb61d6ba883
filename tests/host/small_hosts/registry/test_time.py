import logging

import methods  # noqa: F401
from conf import cfg, load_cfg_from_args
from datasets.data_loading import get_test_loader
from toy import ToyNet
from utils.eval_utils import get_accuracy
from utils.registry import ADAPTATION_REGISTRY

logger = logging.getLogger(__name__)


def evaluate(description):
    load_cfg_from_args(description)
    base_model = ToyNet(flat=True).eval()
    base_model.model_preprocess = None
    available = ADAPTATION_REGISTRY.registered_names()
    assert cfg.MODEL.ADAPTATION in available, f"not supported! Choose from: {available}"
    model = ADAPTATION_REGISTRY.get(cfg.MODEL.ADAPTATION)(cfg=cfg, model=base_model, num_classes=4)
    for place, domain in enumerate(cfg.CORRUPTION.TYPE):
        if place == 0 or "reset_each_shift" in cfg.SETTING:
            try:
                model.reset()
                logger.info("resetting model")
            except AttributeError:
                logger.warning("not resetting model")
        model.eval()
        loader = get_test_loader(domain, cfg.TEST.BATCH_SIZE, cfg.CORRUPTION.NUM_EX)
        accuracy = get_accuracy(model, data_loader=loader, dataset_name=cfg.CORRUPTION.DATASET, domain_name=domain)
        logger.info(f"{cfg.CORRUPTION.DATASET} error % [{domain}5][#samples=24]: {1 - accuracy:.2%}")


if __name__ == "__main__":
    evaluate("evaluation")
