"""Sweeps: a matrix of runs in one plan file, measured block by block, resumed, and spread over machines."""
