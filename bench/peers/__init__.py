"""One file a peer, each run by the interpreter of that peer's environment: a task as JSON in, a line of JSON out."""
