"""Predictions for images by the thousand: what is read, and what is written of each.

No torch: a model comes as a function, whether it is a checkpoint's or an exported file's.
"""
