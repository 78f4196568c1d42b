"""What benches share beside the harness: inputs, the picture, the memory of workers."""
