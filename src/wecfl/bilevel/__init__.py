"""The choices that make a method: g, d, λ, clustering, programs, aggregation – and F, R."""
