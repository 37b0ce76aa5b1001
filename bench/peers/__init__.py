"""One file a peer, run by the interpreter of its environment: a task as JSON in, a line of JSON out."""
