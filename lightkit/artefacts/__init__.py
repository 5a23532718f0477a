"""What an exported model says of itself: inputs, outputs, classes, preprocessing. No torch.

Apart from the exports, because models say it, exports carry it, and predictions read it.
"""
