"""What a cache has no more, or soon not: the one way to give rows back, and what is told of them."""
