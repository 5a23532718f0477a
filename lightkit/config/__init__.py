"""Configs from layers: files, ``LIGHTKIT_*`` variables and flags, merged, with each value's place.

::

    resolved = resolve(files, flags=flags, environ=os.environ, subcommand="fit")
    resolved.lightning_values        # what LightningCLI takes
    resolved.origin_of("trainer.max_epochs").render()
    dump_yaml(resolved.with_references(resolved.name_entries(dumped)))  # what is saved

- `resolve` merges the layers and gives a `Resolved`.
- `resolve_hardware` turns hardware keys, ``accelerator: {gpus: 2}`` and those of Lightning 1.x,
  into the trainer's.
- `dump_yaml` and `read_scalar` write and read YAML as jsonargparse does; `read_file` reads a file
  with its places.
- `Problems` collects all errors instead of the first.
- `error_at`, `near` and `dotted` make errors that show a place, hint at a near word, and name a
  key.

Layers, lowest first: each file after what it extends, variables, flags. Mappings merge key by key;
scalars and lists replace; ``key+:`` appends; a new ``class_path`` drops the arguments of the class
that it replaces. Apart, and without torch, so that mistakes in a config are reported before
anything heavy is loaded.
"""

from lightkit.config.accelerator import Hardware, resolve_hardware
from lightkit.config.loader import resolve
from lightkit.config.origins import KeyPath, Origin, Problems, dotted, error_at, shown_path
from lightkit.config.overrides import Flag, is_layer
from lightkit.config.resolved import Resolved
from lightkit.config.sections import CLASS_SECTIONS, NAMED_CLASSES, SECTIONS
from lightkit.config.yaml_reader import dump_yaml, read_file, read_scalar
from lightkit.errors import near

__all__ = [
    "CLASS_SECTIONS",
    "NAMED_CLASSES",
    "SECTIONS",
    "Flag",
    "Hardware",
    "KeyPath",
    "Origin",
    "Problems",
    "Resolved",
    "dotted",
    "dump_yaml",
    "error_at",
    "is_layer",
    "near",
    "read_file",
    "read_scalar",
    "resolve",
    "resolve_hardware",
    "shown_path",
]
