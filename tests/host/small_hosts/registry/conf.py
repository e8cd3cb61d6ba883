import argparse
import logging

from yacs.config import CfgNode

_C = CfgNode()
cfg = _C
_C.SETTING = "continual"
_C.MIXED_PRECISION = False
_C.DATA_DIR = "./data"
_C.CKPT_DIR = "./ckpt"
_C.MODEL = CfgNode(
    {
        "ARCH": "Toy",
        "ADAPTATION": "source",
        "EPISODIC": False,
        "CKPT_PATH": "",
        "USE_CLIP": False,
        "RESET_AFTER_NUM_UPDATES": 0,
    }
)
_C.CORRUPTION = CfgNode({"DATASET": "cifar10_c", "TYPE": ["fog", "snow"], "SEVERITY": [5], "NUM_EX": 24})
_C.BN = CfgNode({"ALPHA": 0.1})
_C.OPTIM = CfgNode(
    {
        "STEPS": 1,
        "LR": 1e-3,
        "METHOD": "Adam",
        "BETA": 0.9,
        "MOMENTUM": 0.9,
        "DAMPENING": 0.0,
        "NESTEROV": True,
        "WD": 0.0,
    }
)
_C.SOURCE = CfgNode({"NUM_WORKERS": 0, "PERCENTAGE": 1.0, "NUM_SAMPLES": -1})
_C.TEST = CfgNode({"BATCH_SIZE": 8, "WINDOW_LENGTH": 1})


def load_cfg_from_args(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--cfg", dest="cfg_file", required=True)
    parser.add_argument("opts", default=None, nargs=argparse.REMAINDER)
    args = parser.parse_args()
    cfg.merge_from_file(args.cfg_file)
    cfg.merge_from_list(args.opts)
    cfg.freeze()
    logging.basicConfig(level=logging.INFO, format="[%(filename)s]: %(message)s", force=True)
