"""BYTES BY KEY: files that are either whole or absent, whatever happens while they are written."""
