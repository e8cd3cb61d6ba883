"""``tta-cattan make-corruptions``: corrupt your own clean images in the layout of ImageNet-C or CIFAR-C."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tta_cattan.cli.arguments import CommandParser, option
from tta_cattan.util.errors import UserError, nearest

_PARSER = CommandParser(
    "make-corruptions",
    "Corrupt clean images: class folders become OUT/<corruption>/<severity>/<class>/*.JPEG (ImageNet-C's layout), an "
    ".npz file with x and y becomes OUT/<corruption>.npy and labels.npy (CIFAR-C's). Run it again to resume.",
    option("--images", "folder of class folders, or .npz file", "PATH", type=Path, required=True),
    option("--out", "e.g. data/ImageNet-C or data/CIFAR-10-C", "DIR", type=Path, required=True),
    option("--corruptions", "names (default: the 15 common ones; 'all' adds 4 extra)", "A,B"),
    option("--severities", "default: 1,2,3,4,5", "1,2", default="1,2,3,4,5"),
    option("--strengths", "default: cifar for .npz, imagenet for folders", choices=("imagenet", "cifar")),
    option("--size", "in folders: resize to 256/224 of it, then crop (224)", "PX", type=int, default=224),
    option("--workers", "processes (default: one per core)", "N", type=int, default=0),
    option("--seed", "of the random numbers (0)", "N", type=int, default=0),
    option(
        "--padded",
        "for an .npz file: 10,000 rows per severity, the rest zero, as RobustBench's and TENT's loaders expect "
        "(147 MB a corruption at 32 px)",
    ),
)


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = _PARSER.parse_args(argv)
    from tta_cattan.bench.data.corruptions import COMMON, EXTRA, SEVERITIES, SMALLEST_SIDE
    from tta_cattan.bench.data.corruptions.make import Task, corrupt_array_file, corrupt_folder
    from tta_cattan.bench.data.corruptions.strengths import TableName

    known = (*COMMON, *EXTRA)
    names = {None: COMMON, "all": known}.get(args.corruptions) or tuple(args.corruptions.split(","))
    for name in names:
        if name not in known:
            raise UserError(f"--corruptions has {name!r}.{nearest(name, known)} Known: {', '.join(known)}")
    severities = tuple(int(s) if s.isdecimal() else -1 for s in args.severities.split(","))
    if not set(severities) <= set(SEVERITIES):
        raise UserError(f"--severities {args.severities!r}: give numbers from 1 to 5, separated by commas")
    if not args.images.exists():
        raise UserError(f"--images {args.images} does not exist: give a folder of class folders or an .npz file")
    if args.workers < 0:
        raise UserError(f"--workers {args.workers}: give the number of processes, or 0 for one per core")
    if args.size < SMALLEST_SIDE:
        raise UserError(f"--size {args.size}: the corruptions need images of at least {SMALLEST_SIDE} pixels")
    is_file = args.images.is_file()
    strengths: TableName = args.strengths or ("cifar" if is_file else "imagenet")
    task = Task(names, severities, strengths, args.seed, args.size, args.workers, args.padded)
    made, kept = (corrupt_array_file if is_file else corrupt_folder)(args.images, args.out, task)
    print(f"{args.out}: {made} files made, {kept} were there already")
    return 0
