"""Speed, as ratios beside the physical limit in the same run. `semel bench store`."""
