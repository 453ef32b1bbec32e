"""The choices that make a method: g, d, λ, clustering, programs, serving, aggregation – and F, R."""
