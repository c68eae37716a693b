"""Where the blocks of a sweep are run: here, by Slurm, or on machines reached by SSH."""
