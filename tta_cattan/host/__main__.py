"""``python -m tta_cattan.host``: a user's mistake is one line and exit code 2."""

import sys

from tta_cattan.host.launcher import main
from tta_cattan.util.errors import UserError

if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
