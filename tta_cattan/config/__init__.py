"""Configuration: every key declared once, loaded from YAML files with ``_BASE_``."""

from typing import Any

from tta_cattan.config.declared import (
    CORRUPTIONS,
    RESET_EACH_SHIFT,
    check_cfg,
    declared_keys,
    get_defaults,
    leaves,
    method_keys,
    own_keys,
    set_value,
    shared_keys,
)
from tta_cattan.config.load import (
    dump_yaml,
    find_config,
    find_key,
    load_cfg,
    read_yaml,
    shipped_folder,
    to_dict,
)


def __getattr__(name: str) -> Any:
    """Return ``cfg``: the frozen defaults, with the keys of every method registered so far."""
    if name != "cfg":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    defaults = get_defaults()
    defaults.freeze()
    return defaults
