"""TIFF volumes: a file of pages, or a folder with a file a slice."""
