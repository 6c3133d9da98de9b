"""Runs the rows of a table as short programs, as many at a time as there are processors."""

import concurrent.futures
import contextlib
import os


def name_of(row):
    return "-".join(str(value) for value in row.values())


@contextlib.contextmanager
def futures_of(request, oracle_of, run):
    """What run(name, row) gives for every row that the module's test_row asks for and for its
    oracle, by name, as futures."""
    wanted = {}
    for item in request.session.items:
        if item.originalname != "test_row" or item.module is not request.module:
            continue
        row = item.callspec.params["row"]
        for one in (oracle_of(row), row):
            wanted[name_of(one)] = one
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {name: pool.submit(run, name, row) for name, row in wanted.items()}
