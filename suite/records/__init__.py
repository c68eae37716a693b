"""The record that a trial leaves behind, and how it is read again."""
