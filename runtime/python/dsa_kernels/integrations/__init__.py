"""This package's ops under the names that serving engines call. One module an engine; none is imported unless asked for."""
