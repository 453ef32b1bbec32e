"""The choices that make a method: g, d, λ, clustering, local objective, aggregation – and F, R."""
