"""Jobs whose config lists partitions."""
