import argparse
import logging

from yacs.config import CfgNode

_C = CfgNode()
cfg = _C
_C.MODEL = CfgNode({"ARCH": "Toy", "ADAPTATION": "source", "EPISODIC": False})
_C.CORRUPTION = CfgNode({"DATASET": "cifar10", "TYPE": ["fog", "snow"], "SEVERITY": [5], "NUM_EX": 24})
_C.BN = CfgNode({"EPS": 1e-5, "MOM": 0.1})
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
_C.TEST = CfgNode({"BATCH_SIZE": 8})
_C.SAVE_DIR = "./output"
_C.DATA_DIR = "./data"
_C.CKPT_DIR = "./ckpt"
_C.RNG_SEED = 1


def load_cfg_fom_args(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--cfg", dest="cfg_file", required=True)
    parser.add_argument("opts", default=None, nargs=argparse.REMAINDER)
    args = parser.parse_args()
    cfg.merge_from_file(args.cfg_file)
    cfg.merge_from_list(args.opts)
    cfg.freeze()
    logging.basicConfig(level=logging.INFO, format="[%(filename)s]: %(message)s", force=True)
