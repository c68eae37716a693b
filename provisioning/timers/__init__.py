"""Timers that start a command at set times: systemd timers, crontab, CronJobs of a cluster."""
