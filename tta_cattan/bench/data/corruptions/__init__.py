"""The 15 common corruptions of ImageNet-C and CIFAR-10-C, and the 4 extra ones, at severities 1 to 5.

Written from the definitions of the operations, with numpy, scipy and pillow; the strengths are those of the published
benchmarks. The random draws are our own, so the images have the same distribution as the published ones and are not
the same images. Note: ImageNet-C was stored as JPEG files of quality 85 afterwards, which is not done here.
"""

from __future__ import annotations

from tta_cattan.bench.data.corruptions.apply import COMMON, EXTRA, SEVERITIES, corrupt_batch, corruption, image_rng
