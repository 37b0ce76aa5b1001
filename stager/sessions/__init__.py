"""Readers: their orders, how far they are, what they wait for, and which versions they hold."""
