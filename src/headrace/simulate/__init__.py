"""The machines of a flow in a simulated world: virtual time, queues, disks, crashes and pauses, all from a seed."""
