"""A scenario on a real server that answers on this machine, beside the simulator."""
