"""A fuzzer of the frame codec and the message definitions. See `scripts/fuzz_frames`."""
