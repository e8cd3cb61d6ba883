"""Packaging of tta-cattan."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+?)"', (HERE / "tta_cattan" / "__init__.py").read_text()).group(1)

# The configs live at the top of the repository, where users edit them, and are installed inside the package.
FOLDERS = [Path("cfgs"), *sorted(Path("cfgs").glob("*/"))]
CONFIGS = [f"tta_cattan.{folder.as_posix().replace('/', '.')}" for folder in FOLDERS]

# Open ranges: installing into an existing TTA repository must not move its torch, torchvision, timm or numpy.
REQUIRES = [
    "torch>=2.1",
    "torchvision>=0.16",
    "numpy>=1.22",
    "scipy>=1.8",
    "pyyaml>=6.0",
    "yacs>=0.1.8",
    "safetensors>=0.4",
]

# What the bench needs beyond the plug-in; scikit-learn is for the embedded digits alone.
BENCH = ["scikit-learn>=1.1", "pillow>=9.1", "filelock>=3.9", "tqdm>=4.60"]

# constrained layout with legends outside the axes came with matplotlib 3.7
REPORT = ["jinja2>=3.0", "matplotlib>=3.7"]
# ScanNet's part of PointDA-10 lies in .h5 files
POINTS = ["h5py>=3.1"]

DOCS = ["mkdocs-material>=9.5", "mkdocstrings[python]>=0.26", "matplotlib>=3.7"]
CHECKS = ["ruff>=0.6", "mypy>=1.8", "pytest-cov>=4"]

EXTRAS = {
    "bench": BENCH,
    # RobustBench 1.1.1 pins timm 1.0.9 and gdown 5.1.0, and reads pkg_resources, which setuptools 81 dropped.
    "robustbench": ["robustbench==1.1.1", "setuptools<81"],
    "timm": ["timm>=0.9"],
    "points": POINTS,
    "report": REPORT,
    "ray": ["ray>=2.9"],
    # PySide6 brings the Chromium in which the report's page is tested.
    "test": [
        *BENCH,
        *REPORT,
        *POINTS,
        "ray>=2.9; python_version < '3.14'",  # it comes late to a new Python
        "pytest>=7",
        "pytest-xdist>=3",
        "hypothesis>=6",
        "onnx>=1.16",
        "onnxscript>=0.1",
        "onnxruntime>=1.17",
        "PySide6>=6.5",
        *DOCS,
        *CHECKS,
    ],
    "docs": DOCS,
    "dev": [*CHECKS, "pre-commit>=3", "build>=1", "twine>=5"],
}

setup(
    name="tta-cattan",
    version=VERSION,
    description="CATTAn: test-time adaptation by deep subspace alignment, as a plug-in for TTA benchmark frameworks",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    author="tta-cattan contributors",
    project_urls={"Paper": "https://arxiv.org/abs/2207.04185"},
    keywords="test-time adaptation, domain adaptation, subspace alignment, distribution shift, robustness, ImageNet-C",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3 :: Only",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    packages=[*find_packages(include=["tta_cattan", "tta_cattan.*"]), *CONFIGS],
    package_dir={"tta_cattan.cfgs": "cfgs"},
    package_data={
        "tta_cattan": ["py.typed"],
        "tta_cattan.bench.report": ["page.*"],
        **{name: ["*.yaml"] for name in CONFIGS},
    },
    install_requires=REQUIRES,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["tta-cattan=tta_cattan.cli.main:main"]},
)
