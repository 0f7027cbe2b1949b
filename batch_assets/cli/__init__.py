"""The command line, thin: a verb reads its options, calls one function below, and prints."""
