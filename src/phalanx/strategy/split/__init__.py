"""Train one network whose parts are on different workers: pipeline parallelism."""
