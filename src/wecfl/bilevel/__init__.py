"""The components that methods are made of, and the objectives F and R.

There is a room for each kind of component that comes in many forms: what clients are compared by
(`representation`), how they are grouped (`clustering`), what they do in a round (`local`), and how
their models become centers (`aggregation`). Parts of one published method that belong together
stand in one file. It is in the room of the step in which the method differs from others.
"""
