"""What starts a command again and again on this host: systemd timers, crontab, Slurm's scrontab. One file each."""
