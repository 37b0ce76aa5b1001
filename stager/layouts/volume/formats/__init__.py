"""The formats that arrays of volumes have."""
