"""Image files: reading them, and what is done to them before a model sees them. No torch.

Apart from the data modules, because predictions with an exported model need it too, where there is
no torch.
"""
