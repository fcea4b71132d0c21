"""SGLang's own scheduler and trees beside the simulator: counts, never numbers of a kernel."""
