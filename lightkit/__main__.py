"""`python -m lightkit` is `lightkit`."""

import sys

from lightkit.main import main

if __name__ == "__main__":
    sys.exit(main())
