"""Honest comparison of policies: paired runs, statistics, tables.

Needs the packages of the ``demo`` extra; nothing here is imported by the core.
"""
