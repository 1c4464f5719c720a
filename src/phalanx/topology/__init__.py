"""All-reduce topologies: along which trees members of a group add, one tree per slice; pure."""
