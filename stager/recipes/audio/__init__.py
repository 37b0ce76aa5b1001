"""The recipe for sound: clips of any length, of one channel."""
