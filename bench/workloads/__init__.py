"""The workloads of people who came with a slow training: their own way, and stager, cold and warm."""
