"""The HTTP API: routes by noun, the bodies they take, and what one caller may ask."""
