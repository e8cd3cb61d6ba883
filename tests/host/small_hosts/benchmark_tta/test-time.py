import logging

from src.data import load_dataset
from src.methods import *  # noqa: F403
from src.models.load_model import load_model
from src.utils import get_accuracy, get_args
from src.utils.conf import cfg, load_cfg_fom_args

logger = logging.getLogger(__name__)


def evaluate(cfg):
    base_model = load_model(cfg.MODEL.ARCH).cuda()
    if cfg.MODEL.ADAPTATION == "source":
        model, param_names = setup_source(base_model)  # noqa: F405
    elif cfg.MODEL.ADAPTATION == "tent":
        model, param_names = setup_tent(base_model, cfg)  # noqa: F405
    else:
        raise ValueError(f"Adaptation method '{cfg.MODEL.ADAPTATION}' is not supported!")
    logger.info(f"adapted: {param_names}")
    for domain in cfg.CORRUPTION.TYPE:
        try:
            model.reset()
            logger.info("resetting model")
        except:  # noqa: E722
            logger.warning("not resetting model")
        _, loader = load_dataset(cfg.CORRUPTION.DATASET, cfg.DATA_DIR, cfg.TEST.BATCH_SIZE, domain=domain)
        for _ in range(cfg.TEST.EPOCH):
            accuracy = get_accuracy(model, data_loader=loader)
        logger.info(f"{cfg.CORRUPTION.DATASET} accuracy % [{domain}]: {accuracy:.2%}")


if __name__ == "__main__":
    args = get_args()
    load_cfg_fom_args(args.cfg, args.output_dir)
    evaluate(cfg)
