"""The search of `lightkit sweep`: space, proposals, pruning, record and outputs.

No torch, and no process.
"""
