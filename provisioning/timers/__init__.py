"""Timers that start a command at set times on this host: systemd timers, crontab, Slurm's scrontab."""
