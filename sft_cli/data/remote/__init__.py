"""Files behind an address (`s3://`, `gs://`, `hf://` ...): listed once, copied into the cache, read from there."""
