"""``tta-cattan inspect FILE``: print the contents of a subspace file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tta_cattan.cli.arguments import CommandParser
from tta_cattan.util.errors import printable


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = CommandParser(prog="tta-cattan inspect", description="Print the contents of a subspace file.")
    parser.add_argument("file", type=Path)
    file = parser.parse_args(argv).file
    from tta_cattan.alignment import Subspace, orthonormality_error

    subspace = Subspace.load(file)
    share = subspace.eigenvalues[: subspace.d].sum() / subspace.eigenvalues.sum()
    print(f"{printable(file)}: {file.stat().st_size:,} bytes")
    print(f"features           {subspace.dim}")
    print(f"directions         {subspace.d} ({share:.2%} of the spectrum)")
    print(f"samples            {subspace.count:,}")
    print(f"kind               {'PCA (centred)' if subspace.centered else 'uncentred SVD'}")
    print(f"mean stored        {'no' if subspace.mean is None else 'yes'}")
    print(f"orthonormal to     {orthonormality_error(subspace.basis):.1e}")
    print("eigenvalues        " + ", ".join(f"{value:.4g}" for value in subspace.eigenvalues[:6].tolist()) + ", ...")
    for key, value in sorted(subspace.provenance.items()):
        print(f"{printable(key):18} {printable(value)}")
    return 0
