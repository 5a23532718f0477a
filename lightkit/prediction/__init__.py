"""Predictions for images by the thousand: what is read, what is written of each, and how ranks' shares are joined.

No torch: a model comes as a function, whether it is a checkpoint's or an exported file's.
"""
