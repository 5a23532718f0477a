"""An exported model behind HTTP, on LitServe: requests, answers, and the server's life.

No torch.
"""
