"""Run studies: a matrix of jobs, unattended, repeated until its intervals are narrow enough."""
