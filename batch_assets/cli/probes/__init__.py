"""What `doctor` looks at, a module for each part. A probe reads, and changes nothing."""
