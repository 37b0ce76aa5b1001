"""Verbs about what was read: how hot it is, and what another cache would have hit."""
