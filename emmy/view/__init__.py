"""A saturated region to look at: `picture` states it as plain data, `html`, `svg` and `gym` write it."""
