"""The components that methods are made of, and the objectives F and R.

A room for each kind of component that has many: what clients are compared by (`representation`),
how they are grouped (`clustering`), what they do in a round (`local`), and how their models become
centers (`aggregation`). Parts of one published method that belong together stand in one file, in
the room of what is particular about it.
"""
