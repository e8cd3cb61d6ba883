import logging

from yacs.config import CfgNode

_C = CfgNode()
cfg = _C
_C.MODEL = CfgNode({"ARCH": "Toy", "ADAPTATION": "source", "EPISODIC": False})
_C.CORRUPTION = CfgNode(
    {
        "DATASET": "cifar10_c",
        "SOURCE_DATASET": "cifar10",
        "SOURCE_DOMAIN": "origin",
        "TYPE": ["fog", "snow"],
        "SEVERITY": [5],
    }
)
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
_C.SHOT = CfgNode({"EPSILION": 1e-5, "CLS_PAR": 0.3})
_C.TEST = CfgNode({"BATCH_SIZE": 8, "EPOCH": 1})
_C.DATA_DIR = "./data"
_C.CKPT_DIR = "./ckpt"


def merge_from_file(cfg_file):
    with open(cfg_file) as file:
        _C.merge_from_other_cfg(_C.load_cfg(file))


def load_cfg_fom_args(cfg_file, output_dir):
    merge_from_file(cfg_file)
    logging.basicConfig(level=logging.INFO, format="[%(filename)s]: %(message)s", force=True)
