"""``python -m tta_cattan`` is ``tta-cattan``."""

import sys

from tta_cattan.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
