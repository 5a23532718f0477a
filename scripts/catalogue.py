"""Write what a config can name, from the signatures: lightkit/config/schema.json.

    python scripts/catalogue.py           write it
    python scripts/catalogue.py --check   exit with 1 where it is no longer what would be written

Needed after an argument has changed, and with new versions of torch, Lightning or jsonargparse.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lightkit.cli.catalogue_builder import build_catalogue

FILE = Path(__file__).parents[1] / "lightkit" / "config" / "schema.json"


def main() -> int:
    """Write the file, or compare it."""
    text = json.dumps(build_catalogue(), indent=1, ensure_ascii=False) + "\n"
    if sys.argv[1:] == ["--check"]:
        if text == FILE.read_text(encoding="utf-8"):
            return 0
        print(f"{FILE} is not what the signatures say now; run python scripts/catalogue.py")
        return 1
    FILE.write_text(text, encoding="utf-8")
    print(f"{FILE}: {FILE.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
