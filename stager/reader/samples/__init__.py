"""The samples of a data set: their list, its versions, and the part that is wanted."""
