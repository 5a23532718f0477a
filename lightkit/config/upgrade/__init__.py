"""Configs of Lightning 1.x in today's words: `lightkit upgrade`.

What hardware keys mean, `resolve_hardware` knows. Here is what else changed (`trainer_arguments`, `class_paths` and
`class_arguments`: tables with a reason for each rule), and how it is written into the file so that every other byte
stays (`syntax`, `edits`).
"""

from lightkit.config.upgrade.changes import Change
from lightkit.config.upgrade.upgrading import Upgraded, upgrade_file

__all__ = ["Change", "Upgraded", "upgrade_file"]
