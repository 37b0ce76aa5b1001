"""The tables of the catalog."""

from typing import Final

SCHEMA_VERSION: Final = 3
# `sum`: of the columns that must not be wrong. SQLite has no checksums, and a flipped bit is another sample.
SCHEMA: Final = """
CREATE TABLE about (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE lists (                    -- the samples that a data set ever had, and its newest manifest
    name TEXT PRIMARY KEY,
    lineage TEXT NOT NULL,
    segments TEXT NOT NULL,             -- JSON: names of files
    samples INTEGER NOT NULL,           -- how many they have
    manifest TEXT NOT NULL,             -- digest
    sum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE datasets (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL REFERENCES lists (name),
    recipe TEXT NOT NULL,               -- digest
    spec TEXT NOT NULL,                 -- DatasetSpec as JSON
    scanned_at REAL NOT NULL,
    is_current INTEGER NOT NULL,        -- the recipe that this name has now
    origin_reads INTEGER NOT NULL DEFAULT 0,
    origin_bytes INTEGER NOT NULL DEFAULT 0,
    sum INTEGER NOT NULL,
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
    is_asked INTEGER NOT NULL DEFAULT 0, -- staged by a job, not only because a reader came by
    sum INTEGER NOT NULL
);
CREATE TABLE failures (
    dataset INTEGER NOT NULL REFERENCES datasets (id),
    sample INTEGER NOT NULL,
    key BLOB NOT NULL,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,
    at REAL NOT NULL,
    sum INTEGER NOT NULL,
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
CREATE TABLE leases (                   -- who reads which version
    session TEXT PRIMARY KEY,
    dataset TEXT NOT NULL,              -- name
    manifest TEXT NOT NULL,             -- digest
    pid INTEGER NOT NULL,
    began INTEGER NOT NULL
) WITHOUT ROWID;
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
