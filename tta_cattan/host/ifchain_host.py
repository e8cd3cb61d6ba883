"""TENT, CoTTA and Benchmark-TTA: an if-chain on ``cfg.MODEL.ADAPTATION`` inside the script."""

from __future__ import annotations

import ast
import copy
import importlib
import logging
import re
import sys
from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, Any

from tta_cattan.host.methods import build_from_host, declare, host_names, split_overrides
from tta_cattan.util.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from yacs.config import CfgNode

    from tta_cattan.methods import AdaptationMethod

logger = logging.getLogger(__name__)

# The name of the set-up function in the script's namespace.
SETUP_NAME = "__tta_cattan_setup__"


def plug_in(conf: str) -> dict[str, Any]:
    """Declare our keys in the host's config module; return the names that the extended script needs."""
    declare(importlib.import_module(conf).cfg)
    return {SETUP_NAME: setup_in_chain}


def setup_in_chain(model: nn.Module, cfg: CfgNode, with_names: bool) -> Any:
    """Set up our method in the form that the chain expects; Benchmark-TTA also expects the parameters' names."""
    method = setup(model, cfg)
    return (method, method.collect_params()[1]) if with_names else method


def setup(model: nn.Module, cfg: CfgNode) -> AdaptationMethod:
    """Set up our method and log what TENT logs."""
    logger.info("test-time adaptation: %s", cfg.MODEL.ADAPTATION.upper())
    has_loader = "SOURCE_DATASET" in cfg.CORRUPTION and "src.data" in sys.modules
    method = build_from_host(model, cfg, source_batches=(lambda: _source_batches(cfg)) if has_loader else None)
    logger.info("params for adaptation: %s", method.collect_params()[1])
    logger.info("optimizer for adaptation: %s", method.optimizer)
    return method


def add_branch(tree: ast.Module) -> ast.Module:
    """Add a branch for our methods before the chain on ``cfg.MODEL.ADAPTATION``.

    The branch is what a user would write by hand: ``if cfg.MODEL.ADAPTATION in (...): model = setup(base_model)``, with
    the chain as its ``else``. Only the syntax tree in memory changes; line numbers stay those of the file.
    """
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.Compare) and _adaptation_key(node) is not None]
    taken = {str(value.value) for test in tests for value in test.comparators if isinstance(value, ast.Constant)}
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        for place, statement in enumerate(function.body):
            if isinstance(statement, ast.If) and (key := _adaptation_key(statement.test)) is not None:
                function.body[place] = _branch(statement, key, taken)
                return ast.fix_missing_locations(tree)
    raise UserError(
        "the script has no `if cfg.MODEL.ADAPTATION == ...` to add a branch to: it is another version of this host. "
        "Add the branch by hand, see docs/hosts.md"
    )


def _branch(chain: ast.If, key: ast.expr, taken: Container[str]) -> ast.If:
    """Return ``if key in our names: <targets> = setup(<model>, cfg, with_names)`` with ``chain`` as its else."""
    for statement in chain.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call) and statement.value.args:
            break
    else:
        raise UserError("the first branch on cfg.MODEL.ADAPTATION sets up no model: an unknown version of this host")
    cfg = next(node for node in ast.walk(key) if isinstance(node, ast.Name))
    with_names = isinstance(statement.targets[0], ast.Tuple)
    assign = ast.Assign(
        targets=copy.deepcopy(statement.targets),
        value=ast.Call(
            func=ast.Name(SETUP_NAME, ast.Load()),
            args=[copy.deepcopy(statement.value.args[0]), copy.deepcopy(cfg), ast.Constant(with_names)],
            keywords=[],
        ),
    )
    ours = ast.Tuple([ast.Constant(name) for name in host_names(taken)], ast.Load())
    test = ast.Compare(copy.deepcopy(key), [ast.In()], [ours])
    return ast.copy_location(ast.If(test, [ast.copy_location(assign, chain)], [chain]), chain)


def _adaptation_key(test: ast.expr) -> ast.expr | None:
    """Return the expression ``<cfg>.MODEL.ADAPTATION`` that a test compares with a name."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq):
        return None
    return test.left if re.fullmatch(r"\w+\.MODEL\.ADAPTATION", ast.unparse(test.left)) else None


def _source_batches(cfg: CfgNode) -> Iterator[Tensor]:
    """Yield Benchmark-TTA's source images, from its own loader."""
    load_dataset = importlib.import_module("src.data").load_dataset
    _, loader = load_dataset(
        dataset=cfg.CORRUPTION.SOURCE_DATASET,
        split="val" if cfg.CORRUPTION.SOURCE_DATASET == "imagenet" else "train",
        root=cfg.DATA_DIR,
        adaptation=cfg.MODEL.ADAPTATION,
        batch_size=cfg.TEST.BATCH_SIZE,
        domain=cfg.CORRUPTION.SOURCE_DOMAIN,
    )
    for batch in loader:
        yield batch[0]


def take_overrides(conf: str, arguments: list[str]) -> list[str]:
    """Remove ``KEY VALUE`` pairs from the arguments of a host that takes none; merge them after its config file."""
    arguments, pairs = split_overrides(arguments)
    module: Any = importlib.import_module(conf)
    merge_file = module.merge_from_file

    def merge_file_then_pairs(path: str) -> None:
        merge_file(path)
        module.cfg.merge_from_list(pairs)

    module.merge_from_file = merge_file_then_pairs
    return arguments
