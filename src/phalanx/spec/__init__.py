"""Describe jobs, pools and studies as immutable, validated, plain data.

Models with every default, readers of job files, and writers of resolved jobs. Nothing here builds
or imports what a spec describes, so this package loads without any framework; `strategy`, `engine`,
`data` and the rest map specs to implementations. Every other package may import it.
"""
