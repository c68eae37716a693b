"""The kinds of data sets, read from users' own copies. Their declarations are read without torch, on the host too."""
