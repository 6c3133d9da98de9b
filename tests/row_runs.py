"""Rows of a table of settings, each a short run: which there are, what they have in common, and running
as many at a time as there are processors.

STRATA_WHOLE_TABLE=1 runs every row instead of those in which every few settings meet, and
STRATA_TABLE_PART=2/8 the second eighth of them.
"""

import concurrent.futures
import contextlib
import os

from covering import covering_rows, whole_table
from row_servers import RowServers

EVERY_ROW = bool(os.environ.get("STRATA_WHOLE_TABLE"))
STRATEGIES = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "ZERO1",
              "ZERO2"]


def rows_of(axes, strength):
    """axes: {column: values}. Every `strength` columns meet in all combinations of their values."""
    rows = whole_table(axes) if EVERY_ROW else covering_rows(axes, strength)
    part, parts = map(int, os.environ.get("STRATA_TABLE_PART", "1/1").split("/"))
    return rows[part - 1::parts]


def sharding_of(row, hybrid_shards=1):
    """Flags of row["strategy"]; `hybrid_shards`: ranks that share the shards where it keeps copies."""
    return dict(sharding_strategy=row["strategy"],
                dp_shard_size=hybrid_shards if row["strategy"].startswith("HYBRID") else None)


def unsharded(row):
    """The oracle of most rows: the same on one rank."""
    return dict(row, strategy="NO_SHARD", world=1)


def name_of(row):
    return "-".join(str(value) for value in row.values())


@contextlib.contextmanager
def futures_of(request, oracle_of, run):
    """What run(run_row, name, row) gives for every row that the module's test_row asks for and for
    its oracle, by name, as futures; run_row(flags, world) as run_strata()."""
    wanted = {}
    for item in request.session.items:
        if item.originalname != "test_row" or item.module is not request.module:
            continue
        row = item.callspec.params["row"]
        for one in (oracle_of(row), row):
            wanted[name_of(one)] = one
    with contextlib.closing(RowServers()) as servers, \
            concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {name: pool.submit(run, servers.run, name, row) for name, row in wanted.items()}
