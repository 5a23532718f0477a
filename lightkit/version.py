"""The version of the package.

Apart, so that modules can read it without importing the package's front.
"""

__version__ = "0.1.0"
