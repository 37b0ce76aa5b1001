"""A directory tree as a source: a local disk, or a mount of NFS, SMB or FUSE."""
