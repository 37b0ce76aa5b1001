"""stager keeps a GPU fed: it stages hot data on local SSD, decoded once, shared by all readers."""

__version__ = "0.1.0"
