"""Configuration: every key with its default, meaning and range; YAML files with ``_BASE_``."""

from tta_cattan.config.checks import NOT_EMPTY, Check, above, at_least, check_cfg, distinct, one_of, within
from tta_cattan.config.defaults import CORRUPTIONS, cfg, get_defaults
from tta_cattan.config.find import find_config
from tta_cattan.config.load import load_cfg
from tta_cattan.config.nodes import add_node
from tta_cattan.config.tree import dump_yaml, to_dict

__all__ = [
    "CORRUPTIONS",
    "NOT_EMPTY",
    "Check",
    "above",
    "add_node",
    "at_least",
    "cfg",
    "check_cfg",
    "distinct",
    "dump_yaml",
    "find_config",
    "get_defaults",
    "load_cfg",
    "one_of",
    "to_dict",
    "within",
]
