"""Scaling laws: families of sizes, fits, forecasts."""
