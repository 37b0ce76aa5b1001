"""The recipe for images. Nothing outside of this folder knows what an image is."""
