"""What decides the meaning of a number: the parts of a job."""
