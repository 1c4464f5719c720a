"""Entry points for the APIs of other frameworks."""
