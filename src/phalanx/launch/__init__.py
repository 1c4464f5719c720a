"""Start processes: a launcher turns worker specs into processes and never knows strategies.

`base` is the interface, `catalogue` the table of launchers; `local` and `ssh` are built in.
"""
