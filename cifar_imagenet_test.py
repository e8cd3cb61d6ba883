"""Compare test-time adaptation methods: python cifar_imagenet_test.py --cfg cfgs/imagenet_c/cattan.yaml"""

import sys

from tta_cattan.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["compare", *sys.argv[1:]]))
