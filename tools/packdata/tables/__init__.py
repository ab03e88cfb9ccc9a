"""Tables: CSV, JSON lines, Parquet and Arrow files to rows of numbers, categories and targets.

``scan`` reads everything once and finds types, statistics and categories; ``columns`` decides what becomes of each
column; ``recipe`` packs part by part; ``plan`` puts them together. Where rows cannot be packed as is planned, ``scan``
reads once more, without them: what is learned is learned of the rows that are packed. No file is ever in memory as a
whole.
"""

from packdata.tables.plan import TablesPlan, pack_tables, plan_tables

__all__ = ["TablesPlan", "pack_tables", "plan_tables"]
