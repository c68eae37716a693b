"""The stages of ``benchmarks/gpu_day.py``, by what they look at, and what is made of their facts."""
