"""What a node has, by the kernel, drivers and file systems; the roots of /sys and /proc are arguments."""
