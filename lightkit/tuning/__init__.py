"""Short fits of the real model that measure which settings train it fastest.

Only `lightkit tune` uses it.
"""
