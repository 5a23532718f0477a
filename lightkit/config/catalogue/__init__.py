"""All that a config can name, with its arguments and their types, and a judgement of a config by it. No torch.

::

    findings = check_values(resolved.tree, load_catalogue(), layering=resolved.layering)
    findings.problems   # (path, ConfigError) of every mistake
    findings.unjudged   # places of classes that are not in the catalogue: only importing them can tell

The catalogue is made from the signatures by ``scripts/catalogue.py`` and lies beside this file. What it says of a
package counts only where the installed version is the one that was read.
"""

from lightkit.config.catalogue.catalogue import PACKAGES, Catalogue, load_catalogue
from lightkit.config.catalogue.checking import Findings, check_values
from lightkit.config.catalogue.types import alternatives, any_of, shown, word_of

__all__ = [
    "PACKAGES",
    "Catalogue",
    "Findings",
    "alternatives",
    "any_of",
    "check_values",
    "load_catalogue",
    "shown",
    "word_of",
]
