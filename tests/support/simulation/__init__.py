"""A simulator of stores: real code in real processes, of which one runs at a time.

A run is a list of steps, chosen by a seed. A step lets one process run to its next boundaries
(failpoints, SQL and the disk), kills it, cuts its connections, moves the clock, or crashes the
machine. After every step a witness compares the catalog and the disk with a model in memory.
"""
