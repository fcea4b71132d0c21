"""mlx-lm's own classes and server, driven from outside and compared with the port."""
