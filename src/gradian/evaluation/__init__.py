"""Did the capability get worse: both arms on the same items, scored, and compared beyond noise."""
