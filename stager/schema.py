"""The tables of the catalog."""

from typing import Final

SCHEMA_VERSION: Final = 2
# What makes a catalog of a version one of the next.
MIGRATIONS: Final = {
    1: "ALTER TABLE shards ADD COLUMN is_asked INTEGER NOT NULL DEFAULT 0;\n"
    "ALTER TABLE counts ADD COLUMN computed_s REAL NOT NULL DEFAULT 0",
}
SCHEMA: Final = """
CREATE TABLE about (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE datasets (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    recipe TEXT NOT NULL,               -- digest
    manifest TEXT NOT NULL,             -- digest
    spec TEXT NOT NULL,                 -- DatasetSpec as JSON
    scanned_at REAL NOT NULL,
    is_current INTEGER NOT NULL,        -- the recipe that this name has now
    origin_reads INTEGER NOT NULL DEFAULT 0,
    origin_bytes INTEGER NOT NULL DEFAULT 0,
    UNIQUE (name, recipe)
);
CREATE TABLE shards (
    number INTEGER PRIMARY KEY,         -- never used twice
    dataset INTEGER NOT NULL REFERENCES datasets (id),
    format TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    samples BLOB NOT NULL,              -- sample numbers, little-endian u32, in row order
    is_pinned INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL,
    is_asked INTEGER NOT NULL DEFAULT 0 -- staged by a job, not only because a reader came by
);
CREATE TABLE failures (
    dataset INTEGER NOT NULL REFERENCES datasets (id),
    sample INTEGER NOT NULL,
    key BLOB NOT NULL,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (dataset, sample)
) WITHOUT ROWID;
CREATE TABLE losses (                   -- samples that were resident and are no more, and why
    id INTEGER PRIMARY KEY,
    dataset INTEGER NOT NULL REFERENCES datasets (id),
    at REAL NOT NULL,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,
    samples BLOB NOT NULL               -- sample numbers, little-endian u32
);
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    dataset TEXT NOT NULL,
    state TEXT NOT NULL,
    request TEXT NOT NULL,              -- JSON
    result TEXT NOT NULL,               -- JSON
    created_at REAL NOT NULL
);
CREATE TABLE readers (                  -- the last totals that each reading process reported
    session TEXT NOT NULL,
    process TEXT NOT NULL,
    totals TEXT NOT NULL,               -- JSON
    at REAL NOT NULL,
    PRIMARY KEY (session, process)
) WITHOUT ROWID;
CREATE TABLE counts (                   -- what they add up to
    dataset TEXT NOT NULL,
    session TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    requests INTEGER NOT NULL,
    hits INTEGER NOT NULL,
    misses INTEGER NOT NULL,
    wait_s REAL NOT NULL,
    reasons TEXT NOT NULL,              -- JSON
    at REAL NOT NULL,
    computed_s REAL NOT NULL DEFAULT 0, -- between batches: what the reader itself takes
    PRIMARY KEY (dataset, session, epoch)
) WITHOUT ROWID;
"""
