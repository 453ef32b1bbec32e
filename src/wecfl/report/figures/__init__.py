"""Figures as files: PNG, SVG, PDF or a page of their own."""
