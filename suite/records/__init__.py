"""What one trial leaves behind, and how it is read again."""
