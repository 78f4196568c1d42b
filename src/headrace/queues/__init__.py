"""FIFO logs of frames that outlive the processes that write and read them."""
