"""``python -m tta_cattan.host``."""

import sys

from tta_cattan.host.launcher import main_with_errors

if __name__ == "__main__":
    sys.exit(main_with_errors())
