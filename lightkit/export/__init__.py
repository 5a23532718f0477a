"""Exported models: one module a format, each file proved against the module that it was made of."""
