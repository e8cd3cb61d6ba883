"""``tta-cattan inspect FILE``: print the contents of a file written by ``fit-source``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tta_cattan.cli.arguments import CommandParser, option
from tta_cattan.util.errors import UserError, printable

if TYPE_CHECKING:
    from tta_cattan.alignment import SourceMoments, Subspace

_PARSER = CommandParser(
    "inspect",
    "Print what a file of fit-source holds: a source subspace, or source moments.",
    option("file", "what fit-source wrote", "file", type=Path),
)


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    file = _PARSER.parse_args(argv).file
    from tta_cattan.alignment import SourceMoments, Subspace

    found: Subspace | SourceMoments
    try:
        found = Subspace.load(file)
    except UserError as error:
        try:
            found = SourceMoments.load(file)
        except UserError:
            raise error from None
    print(f"{printable(file)}: {file.stat().st_size:,} bytes")
    lines = _subspace(found) if isinstance(found, Subspace) else _moments(found)
    for name, value in {**lines, "samples": f"{found.count:,}", **dict(sorted(found.provenance.items()))}.items():
        print(f"{printable(name):18} {printable(value)}")
    return 0


def _subspace(found: Subspace) -> dict[str, str]:
    from tta_cattan.alignment import orthonormality_error

    share = found.eigenvalues[: found.d].sum() / found.eigenvalues.sum()
    return {
        "features": f"{found.dim}",
        "directions": f"{found.d} ({share:.2%} of the spectrum)",
        "kind": "PCA (centred)" if found.centered else "uncentred SVD",
        "mean stored": "no" if found.mean is None else "yes",
        "orthonormal to": f"{orthonormality_error(found.basis):.1e}",
        "eigenvalues": ", ".join(f"{value:.4g}" for value in found.eigenvalues[:6].tolist()) + ", ...",
    }


def _moments(found: SourceMoments) -> dict[str, str]:
    at_layer = found.subspace
    return {
        "layers": f"{len(found.classes)}, {len(found.cov)} with a covariance",
        "projection": "none" if at_layer is None else f"{at_layer.d} of {at_layer.dim} at {at_layer.layer}",
    }
