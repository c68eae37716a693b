"""The positive control: injuries of known size, and the certificate of what the suite has found of them."""
