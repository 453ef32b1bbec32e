"""The report page: one HTML file about one or several runs."""
