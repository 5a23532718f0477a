"""Parts that several commands share; the only package that knows LightningCLI.

Importing it makes `import lightning` mean the Lightning that lightkit uses: here, since every
command, the Python API and `LightkitCLI` come through this package before they import a user's
code, and so does each process that they start.
"""

from lightkit import lightning_namespace

lightning_namespace.install()
