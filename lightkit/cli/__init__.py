"""Parts that several commands share; the only package that knows LightningCLI.

Importing it makes `import lightning` mean the Lightning that lightkit uses: here, since every
command, the Python API and `LightkitCLI` come through this package before they import a user's
code, and so does each process that they start. For the same reason, it makes modules importable
whose compiled files are damaged.
"""

from lightkit import lightning_namespace
from lightkit.cli import module_import

lightning_namespace.install()
module_import.install()
