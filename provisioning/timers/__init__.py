"""Timers that start a command at set times: systemd timers, crontab, Slurm's scrontab, CronJobs of a cluster."""
